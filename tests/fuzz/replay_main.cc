// Runs a fuzz target without a fuzzer, as a test: every file of the target's corpus, then mutations of them
// from a fixed seed until their number or the time is used up.
//
//   fuzz_replay_ring CORPUS… [-mutations=N] [-seed=N]     folders; or one file, to run it alone
//
// An input on which the target dies is written to ./<program>.crash first.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
constexpr std::chrono::milliseconds kTime{3000};
constexpr size_t kMaxBytes = 8192;

Bytes current;  // what the target runs on, for the signal handler
char crash_path[256];

void SaveAndDie(int signum) {
  int fd = ::open(crash_path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
  if (fd >= 0) {
    [[maybe_unused]] ssize_t written = ::write(fd, current.data(), current.size());
    ::close(fd);
    static const char text[] =
        "the input that did it has been written beside this message's folder as *.crash\n";
    written = ::write(2, text, sizeof(text) - 1);
  }
  ::signal(signum, SIG_DFL);
  ::raise(signum);
}

Bytes Read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

void Run(const Bytes& input) {
  current = input;
  LLVMFuzzerTestOneInput(current.data(), current.size());
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  Bytes Mutate(Bytes bytes, const std::vector<Bytes>& corpus) {
    const size_t changes = 1 + Below(6);
    for (size_t i = 0; i < changes; ++i) Change(bytes, corpus);
    if (bytes.size() > kMaxBytes) bytes.resize(kMaxBytes);
    return bytes;
  }
  size_t Below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

 private:
  void Change(Bytes& bytes, const std::vector<Bytes>& corpus) {
    const size_t at = Below(bytes.size());
    const auto place = bytes.begin() + static_cast<ptrdiff_t>(at);
    switch (Below(7)) {
      case 0:
        if (!bytes.empty()) bytes[at] ^= static_cast<uint8_t>(1u << Below(8));
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(random_());
        break;
      case 2: bytes.insert(place, 1 + Below(8), static_cast<uint8_t>(random_())); break;
      case 3:
        bytes.erase(place, place + static_cast<ptrdiff_t>(std::min(bytes.size() - at, 1 + Below(16))));
        break;
      case 4: {  // a number that is at an edge
        static constexpr uint64_t kEdges[] = {0,
                                              1,
                                              0x7f,
                                              0x80,
                                              0xff,
                                              0x7fff,
                                              0xffff,
                                              0x7fffffff,
                                              0x80000000,
                                              0xffffffff,
                                              1ull << 61,
                                              1ull << 62,
                                              0x7fffffffffffffff,
                                              0x8000000000000000,
                                              ~0ull};
        const uint64_t value = kEdges[Below(std::size(kEdges))];
        std::memcpy(bytes.data() + at, &value, std::min(bytes.size() - at, size_t{1} << Below(4)));
        break;
      }
      case 5: {  // a piece of the input once more
        const Bytes piece(place, place + static_cast<ptrdiff_t>(std::min(bytes.size() - at, 1 + Below(64))));
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(Below(bytes.size())), piece.begin(), piece.end());
        break;
      }
      default: {  // the end of another one
        const Bytes& other = corpus[Below(corpus.size())];
        const size_t from = Below(other.size());
        bytes.resize(at);
        bytes.insert(bytes.end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
      }
    }
  }

  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  size_t mutations = 20000;
  uint64_t seed = 1;
  std::vector<std::filesystem::path> files;
  bool only_files = true;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("-mutations=", 0) == 0) {
      mutations = std::strtoull(argv[i] + 11, nullptr, 0);
    } else if (argument.rfind("-seed=", 0) == 0) {
      seed = std::strtoull(argv[i] + 6, nullptr, 0);
    } else if (std::filesystem::is_directory(argument)) {
      only_files = false;
      for (const auto& entry : std::filesystem::directory_iterator(argument)) files.push_back(entry.path());
    } else {
      files.emplace_back(argument);
    }
  }
  std::snprintf(crash_path, sizeof(crash_path), "%s.crash",
                std::filesystem::path(argv[0]).filename().c_str());
  for (int signum : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::signal(signum, SaveAndDie);
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const auto& file : files) {
    if (!std::filesystem::is_regular_file(file)) {
      std::fprintf(stderr, "%s is no file\n", file.c_str());
      return 2;
    }
    corpus.push_back(Read(file));
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s CORPUS... [-mutations=N] [-seed=N]; there are no inputs\n", argv[0]);
    return 2;
  }
  for (const Bytes& input : corpus) Run(input);
  if (only_files) return 0;
  Run({});
  Mutator mutator(seed);
  const auto end = std::chrono::steady_clock::now() + kTime;
  size_t done = 0;
  for (; done < mutations && std::chrono::steady_clock::now() < end; ++done) {
    Run(mutator.Mutate(corpus[mutator.Below(corpus.size())], corpus));
  }
  std::printf("%zu inputs of the corpus, %zu mutations\n", corpus.size(), done);
  return 0;
}
