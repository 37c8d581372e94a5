#include "kernels/cuda/matmul/choice_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <vector>

#include "common/unique_fd.h"

namespace tandem::cuda {
namespace {

constexpr size_t kWords = std::size(cublasLtMatmulAlgo_t{}.data);
// Ends every line: a line that another one was written into has no end, or two.
constexpr std::string_view kEnd = " .";

std::string TextOf(const LtMatrix& matrix) {
  return std::to_string(static_cast<int>(matrix.type)) + (matrix.transposed ? "t" : "n") +
         std::to_string(matrix.rows) + "x" + std::to_string(matrix.columns) + "/" +
         std::to_string(matrix.leading);
}

// Every field of the product, without spaces.
std::string KeyOf(const LtProduct& product) {
  std::string key = TextOf(product.x) + "," + TextOf(product.y) + "," + TextOf(product.d);
  for (const int field : {static_cast<int>(product.compute), static_cast<int>(product.fast_accumulation),
                          static_cast<int>(product.x_scales), static_cast<int>(product.y_scales),
                          static_cast<int>(product.has_bias), static_cast<int>(product.bias_type),
                          static_cast<int>(product.alignment)}) {
    key += "," + std::to_string(field);
  }
  return key;
}

std::string LineOf(const std::string& key, const cublasLtMatmulAlgo_t& algorithm) {
  std::string line = key;
  for (const uint64_t word : algorithm.data) {
    char text[20];
    std::snprintf(text, sizeof(text), " %llx", static_cast<unsigned long long>(word));
    line += text;
  }
  return line + std::string(kEnd) + "\n";
}

struct StoredChoice {
  std::string key;
  cublasLtMatmulAlgo_t algorithm = {};
};

// `line` has no newline.
std::optional<StoredChoice> Parse(std::string_view line) {
  if (!line.ends_with(kEnd)) return std::nullopt;
  line.remove_suffix(kEnd.size());
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos) return std::nullopt;
  StoredChoice read;
  read.key = line.substr(0, space);
  line.remove_prefix(space);
  for (uint64_t& word : read.algorithm.data) {
    if (line.empty() || line.front() != ' ') return std::nullopt;
    line.remove_prefix(1);
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), word, 16);
    if (error != std::errc()) return std::nullopt;
    line.remove_prefix(static_cast<size_t>(end - line.data()));
  }
  if (!line.empty()) return std::nullopt;
  return read;
}

// The file's bytes from `from` on, to its end or kMaxBytes.
std::string ReadFrom(int fd, uint64_t from) {
  std::string text;
  std::vector<char> part(size_t{64} << 10);
  while (from + text.size() < ChoiceStore::kMaxBytes) {
    const ssize_t got = ::pread(fd, part.data(), part.size(), static_cast<off_t>(from + text.size()));
    if (got <= 0) break;
    text.append(part.data(), static_cast<size_t>(got));
  }
  return text;
}

}  // namespace

ChoiceStore::ChoiceStore(std::string_view folder, std::string_view gpu, uint64_t version) {
  if (folder.empty()) return;
  std::string name(gpu);
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  path_ = std::string(folder) + "/cublaslt-" + std::to_string(version) + "-" + name;
}

void ChoiceStore::ReadOn() {
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat found = {};
  if (!file.valid() || ::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode)) return;
  // Another user's file may name any algorithm.
  if (found.st_uid != ::geteuid()) return;
  if (static_cast<uint64_t>(found.st_size) < read_) read_ = 0;
  const std::string text = ReadFrom(file.get(), read_);
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::optional<StoredChoice> one = Parse(std::string_view(text).substr(begin, end - begin));
    if (one.has_value()) choices_.insert_or_assign(std::move(one->key), one->algorithm);
    read_ += end + 1 - begin;
  }
}

std::optional<cublasLtMatmulAlgo_t> ChoiceStore::Find(const LtProduct& product) {
  if (path_.empty()) return std::nullopt;
  const std::string key = KeyOf(product);
  std::lock_guard lock(mutex_);
  if (!choices_.contains(key)) ReadOn();
  const auto found = choices_.find(key);
  if (found == choices_.end()) return std::nullopt;
  return found->second;
}

void ChoiceStore::Add(const LtProduct& product, const cublasLtMatmulAlgo_t& algorithm) {
  if (path_.empty()) return;
  const std::string key = KeyOf(product), line = LineOf(key, algorithm);
  std::lock_guard lock(mutex_);
  choices_.insert_or_assign(key, algorithm);
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  const UniqueFd file(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat found = {};
  if (!file.valid() || ::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode)) return;
  if (static_cast<uint64_t>(found.st_size) + line.size() > kMaxBytes) return;
  (void)!::write(file.get(), line.data(), line.size());
}

}  // namespace tandem::cuda
