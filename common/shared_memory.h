// File: shared_memory.h
//
// Shared memory between Tandem's processes: sealed memfds and their mappings. A memfd from Tandem carries the
// seals shrink, grow and seal, so that no holder can make another one fault. A memfd from outside is checked
// for the shrink seal before it is mapped.
#pragma once

#include <cstddef>
#include <string>

#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem {

// One mapping of a file; unmaps when it ends, in the process that made it: a forked child, which has not got
// the pages, may have something else at that address. Move only.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  // Maps `bytes` of `fd` from `offset` (a multiple of the page size), shared, readable and, if asked,
  // writable. The mapping is not inherited by forked children (MADV_DONTFORK).
  static Result<Mapping> Map(int fd, size_t offset, size_t bytes, bool writable);

  // Gives the file's pages up and keeps the addresses, where any access faults until Refill. Idempotent.
  Status Vacate();
  // Maps `fd`, a file of size() bytes or more, at the same addresses, readable and writable, whatever is
  // mapped there.
  Status Refill(int fd);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool valid() const { return data_ != nullptr; }
  template <typename T>
  T* As(size_t offset = 0) const {
    return reinterpret_cast<T*>(data_ + offset);
  }

 private:
  void Unmap();

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  int pid_ = 0;  // of the process that has it
};

// Makes a zeroed memfd of `bytes` with seals shrink, grow and seal. `name` shows in /proc only.
Result<UniqueFd> CreateSealedMemfd(const std::string& name, size_t bytes);

// Checks a descriptor from outside: a memfd, at least `bytes` long, that cannot shrink. INVALID_ARGUMENT says
// which of the three it is not.
Status CheckForeignMemfd(int fd, size_t bytes);

// The length of the file behind `fd` in bytes.
Result<size_t> FileSize(int fd);

}  // namespace tandem
