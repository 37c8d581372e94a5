#include "kernels/cuda/lane/word_writer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace tandem::cuda {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kStagedWords = 4096;
// Words to fill from, and a page for the word that is read.
constexpr size_t kStagingBytes = kStagedWords * sizeof(uint64_t) + kPageBytes;
// Streams share hardware queues with streams of their own priority only. Lanes have 0, the device's service
// stream the lowest: this one is alone with its priority, so that however many streams libraries make, no
// waiting lane ever stands before it in a queue.
constexpr int kPriority = 2;

}  // namespace

Result<std::unique_ptr<WordWriter>> WordWriter::Create(std::shared_ptr<CudaDevice> device) {
  TANDEM_RETURN_IF_ERROR(device->Enter());
  std::unique_ptr<WordWriter> writer(new WordWriter(std::move(device)));
  CudaDriver& driver = writer->device_->driver();
  TANDEM_ASSIGN_OR_RETURN(
      writer->stream_,
      driver.StreamCreateWithPriority(CU_STREAM_NON_BLOCKING, writer->device_->StreamPriority(kPriority)));
  void* staging = ::mmap(nullptr, kStagingBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (staging == MAP_FAILED) return SystemError("mmap", errno);
  writer->staging_ = static_cast<uint64_t*>(staging);
  TANDEM_RETURN_IF_ERROR(writer->Register(staging, kStagingBytes));
  return writer;
}

WordWriter::~WordWriter() {
  (void)device_->Enter();
  CudaDriver& driver = device_->driver();
  if (stream_ != nullptr) (void)driver.StreamDestroy(stream_);
  for (const auto& [address, bytes] : host_) (void)driver.MemHostUnregister(reinterpret_cast<void*>(address));
  if (staging_ != nullptr) ::munmap(staging_, kStagingBytes);
}

Status WordWriter::Register(void* address, size_t bytes) {
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  std::lock_guard lock(mutex_);
  if (OnHost(address)) return AlreadyExists("this host memory is registered already");
  TANDEM_RETURN_IF_ERROR(device_->driver().MemHostRegister(
      address, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
  host_[reinterpret_cast<uintptr_t>(address)] = bytes;
  return Status::Ok();
}

Status WordWriter::Unregister(void* address) {
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  {
    std::lock_guard lock(mutex_);
    if (host_.erase(reinterpret_cast<uintptr_t>(address)) == 0)
      return NotFound("this host memory is not registered");
  }
  // Outside of the lock: it may block, and others' lanes must be releasable meanwhile.
  return device_->driver().MemHostUnregister(address);
}

bool WordWriter::OnHost(const void* address) const {
  auto at = reinterpret_cast<uintptr_t>(address);
  auto after = host_.upper_bound(at);
  if (after == host_.begin()) return false;
  --after;
  return at - after->first < after->second;
}

Status WordWriter::Store(Word* word, uint64_t value) {
  std::lock_guard lock(mutex_);
  if (OnHost(word)) {
    word->store(value, std::memory_order_release);
    return Status::Ok();
  }
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  return device_->driver().StreamWriteValue64(stream_, reinterpret_cast<CUdeviceptr>(word), value);
}

Status WordWriter::StoreInOrder(Word* first, uint64_t first_value, Word* second, uint64_t second_value) {
  std::lock_guard lock(mutex_);
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  // Both by the stream: the CPU would have to wait for the first one to be there.
  ordered_.AddWrite(reinterpret_cast<CUdeviceptr>(first), first_value);
  ordered_.AddWrite(reinterpret_cast<CUdeviceptr>(second), second_value);
  return ordered_.Enqueue(device_->driver(), stream_);
}

Result<uint64_t> WordWriter::Load(const Word* word) {
  std::lock_guard lock(mutex_);
  if (OnHost(word)) return word->load(std::memory_order_acquire);
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  uint64_t* copy = staging_ + kStagedWords;
  TANDEM_RETURN_IF_ERROR(device_->driver().MemcpyAsync(
      reinterpret_cast<CUdeviceptr>(copy), reinterpret_cast<CUdeviceptr>(word), sizeof(*copy), stream_));
  TANDEM_RETURN_IF_ERROR(device_->driver().StreamSynchronize(stream_));
  return *copy;
}

Status WordWriter::Drain() {
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  return device_->driver().StreamSynchronize(stream_);
}

Status WordWriter::Stage(uint64_t value) {
  if (staged_ == value) return Status::Ok();
  // An earlier fill may still be copied from here.
  TANDEM_RETURN_IF_ERROR(device_->driver().StreamSynchronize(stream_));
  std::fill_n(staging_, kStagedWords, value);
  staged_ = value;
  return Status::Ok();
}

Status WordWriter::Fill(Word* words, uint64_t value, size_t count) {
  std::lock_guard lock(mutex_);
  if (OnHost(words)) {
    for (size_t i = 0; i < count; ++i) words[i].store(value, std::memory_order_release);
    return Status::Ok();
  }
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  TANDEM_RETURN_IF_ERROR(Stage(value));
  for (size_t done = 0; done < count; done += kStagedWords) {
    size_t part = std::min(kStagedWords, count - done);
    TANDEM_RETURN_IF_ERROR(device_->driver().MemcpyAsync(reinterpret_cast<CUdeviceptr>(words + done),
                                                         reinterpret_cast<CUdeviceptr>(staging_),
                                                         part * sizeof(uint64_t), stream_));
  }
  return Status::Ok();
}

}  // namespace tandem::cuda
