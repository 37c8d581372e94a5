#include "daemon/control/restart/journal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "common/digest.h"

namespace tandem::daemon {
namespace {

constexpr uint64_t kMagic = 0x316c6e726a444e54;  // "TNDjrnl1"
constexpr uint64_t kHeaderBytes = 4096;
// Outdated bytes that are not worth a copy.
constexpr uint64_t kSlack = uint64_t{1} << 20;
constexpr uint32_t kErased = 1;

struct FileHeader {
  uint64_t magic;
  std::atomic<uint64_t> begin;  // of the records; 0: the journal has been given up
};

struct RecordHeader {
  uint32_t key_bytes;  // 0: the end
  uint32_t flags;
  uint64_t value_bytes;
  uint64_t digest;  // of what is above, key and value
};

uint64_t Digest(uint64_t digest, std::string_view text) {
  for (const char c : text) digest = FoldByte(digest, static_cast<uint8_t>(c));
  return digest;
}

uint64_t DigestOf(const RecordHeader& header, std::string_view key, std::string_view value) {
  uint64_t digest = FoldDigest(kDigestSeed, header.key_bytes);
  digest = FoldDigest(digest, header.flags);
  digest = FoldDigest(digest, header.value_bytes);
  return Digest(Digest(digest, key), value);
}

// Whether all of it was there.
bool ReadAt(int fd, uint64_t offset, void* data, size_t bytes) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

Result<UniqueFd> Journal::Create() {
  UniqueFd fd(::memfd_create("tandem-journal", MFD_CLOEXEC));
  if (!fd.valid() || ::ftruncate(fd.get(), kHeaderBytes) != 0) return SystemError("memfd_create", errno);
  TANDEM_ASSIGN_OR_RETURN(const Mapping header, Mapping::Map(fd.get(), 0, kHeaderBytes, true));
  header.As<FileHeader>()->magic = kMagic;
  header.As<FileHeader>()->begin.store(kHeaderBytes);
  return fd;
}

Result<Journal> Journal::Open(UniqueFd fd) {
  Journal journal;
  journal.fd_ = std::move(fd);
  const Result<size_t> size = FileSize(journal.fd_.get());
  if (!size.ok() || *size < kHeaderBytes) return Status(Code::kDataLoss, "it is no journal");
  TANDEM_ASSIGN_OR_RETURN(journal.header_, Mapping::Map(journal.fd_.get(), 0, kHeaderBytes, true));
  const FileHeader& header = *journal.header_.As<FileHeader>();
  if (header.magic != kMagic) return Status(Code::kDataLoss, "it is no journal");
  journal.begin_ = header.begin.load();
  if (journal.begin_ == 0) return Status(Code::kDataLoss, "its writer abandoned it");
  journal.Read();
  return journal;
}

void Journal::Read() {
  end_ = begin_;
  RecordHeader header{};
  while (ReadAt(fd_.get(), end_, &header, sizeof(header)) && header.key_bytes != 0) {
    const uint64_t size = FileSize(fd_.get()).ok() ? *FileSize(fd_.get()) : 0;
    const uint64_t body = end_ + sizeof(header);
    if (body > size || header.key_bytes > size - body || header.value_bytes > size - body - header.key_bytes)
      break;
    std::string key(header.key_bytes, 0), value(header.value_bytes, 0);
    if (!ReadAt(fd_.get(), body, key.data(), key.size())) break;
    const uint64_t at = body + header.key_bytes;
    if (!ReadAt(fd_.get(), at, value.data(), value.size())) break;
    if (DigestOf(header, key, value) != header.digest) break;
    if (const auto old = live_.find(key); old != live_.end()) live_bytes_ -= old->second.bytes;
    end_ = at + header.value_bytes;
    if ((header.flags & kErased) != 0) {
      live_.erase(key);
      read_.erase(key);
      continue;
    }
    live_[key] = {at, header.value_bytes, Digest(kDigestSeed, value)};
    live_bytes_ += header.value_bytes;
    read_[key] = std::move(value);
  }
  // The remains of a record that was cut short must not be taken for the next one's.
  if (::ftruncate(fd_.get(), static_cast<off_t>(end_)) != 0) Fail("ftruncate", errno);
}

void Journal::Fail(const std::string& what, int error) {
  if (!status_.ok()) return;
  status_ = SystemError("the journal: " + what, error);
  header_.As<FileHeader>()->begin.store(0);
}

void Journal::WriteAt(uint64_t offset, const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0 && status_.ok()) {
    const ssize_t n = ::pwrite(fd_.get(), from, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Fail("pwrite", n < 0 ? errno : ENOSPC);
    from += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
}

Journal::Place Journal::Append(const std::string& key, std::string_view value, bool erased) {
  RecordHeader header{static_cast<uint32_t>(key.size()), erased ? kErased : 0, value.size(), 0};
  header.digest = DigestOf(header, key, value);
  std::string text(reinterpret_cast<const char*>(&header), sizeof(header));
  text += key;
  const Place place{end_ + text.size(), value.size(), Digest(kDigestSeed, value)};
  text += value;
  WriteAt(end_, text.data(), text.size());
  end_ += text.size();
  return place;
}

void Journal::Put(const std::string& key, std::string_view value) {
  if (!status_.ok()) return;
  const auto old = live_.find(key);
  if (old != live_.end()) {
    if (old->second.bytes == value.size() && old->second.digest == Digest(kDigestSeed, value)) return;
    live_bytes_ -= old->second.bytes;
  }
  live_[key] = Append(key, value, false);
  live_bytes_ += value.size();
  if (end_ - begin_ > 2 * live_bytes_ + kSlack) Compact();
}

void Journal::Erase(const std::string& key) {
  const auto old = live_.find(key);
  if (old == live_.end() || !status_.ok()) return;
  live_bytes_ -= old->second.bytes;
  live_.erase(old);
  Append(key, {}, true);
}

std::string Journal::Get(const std::string& key) const {
  const auto found = live_.find(key);
  if (found == live_.end()) return {};
  std::string value(found->second.bytes, 0);
  return ReadAt(fd_.get(), found->second.offset, value.data(), value.size()) ? value : std::string();
}

std::map<std::string, uint64_t> Journal::Digests() const {
  std::map<std::string, uint64_t> digests;
  for (const auto& [key, place] : live_) digests[key] = place.digest;
  return digests;
}

void Journal::Compact() {
  const uint64_t fresh = end_;
  for (auto& [key, place] : live_) place = Append(key, Get(key), false);
  if (!status_.ok()) return;
  header_.As<FileHeader>()->begin.store(fresh);
  const uint64_t outdated = fresh - begin_;
  ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin_),
              static_cast<off_t>(outdated));
  begin_ = fresh;
}

}  // namespace tandem::daemon
