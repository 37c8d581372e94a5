// File: word_writer.h
//
// `WordWriter`: words that the CPU writes and reads for a GPU, wherever they lie. Registered host memory is
// stored to directly; device memory is written by a stream of the writer's own, on which nothing ever waits,
// so that a write passes lanes that do wait.
//
// Thread rule: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/backend.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/lane/word_batch.h"

namespace tandem::cuda {

class WordWriter {
 public:
  static Result<std::unique_ptr<WordWriter>> Create(std::shared_ptr<CudaDevice> device);
  ~WordWriter();

  // See Backend::RegisterHostMemory and UnregisterHostMemory. ALREADY_EXISTS for memory that is registered.
  Status Register(void* address, size_t bytes);
  Status Unregister(void* address);

  // See Backend::StoreWord and FillWords. A write to device memory has been enqueued on return, in the order
  // of calls.
  Status Store(Word* word, uint64_t value);
  // See Backend::StoreWordsInOrder. Both have been enqueued on return.
  Status StoreInOrder(Word* first, uint64_t first_value, Word* second, uint64_t second_value);
  Status Fill(Word* words, uint64_t value, size_t count);
  // See Backend::LoadWord. Reads device memory after all writes that were enqueued before.
  Result<uint64_t> Load(const Word* word);
  // Waits until all that has been enqueued is written: before memory that may hold such words is unmapped.
  Status Drain();

 private:
  explicit WordWriter(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}
  bool OnHost(const void* address) const;
  // Makes every word of the staging area `value`.
  Status Stage(uint64_t value);

  std::shared_ptr<CudaDevice> device_;
  CUstream stream_ = nullptr;
  std::mutex mutex_;  // guards what follows
  WordBatch ordered_;
  std::map<uintptr_t, size_t> host_;  // registered ranges: begin -> bytes
  uint64_t* staging_ = nullptr;       // host memory that fills are copied from, all words of one value
  uint64_t staged_ = 0;
};

}  // namespace tandem::cuda
