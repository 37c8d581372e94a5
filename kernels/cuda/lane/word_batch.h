// File: word_batch.h
//
// `WordBatch`: writes of and waits for words that a stream is to get one after another, enqueued by one call.
// A call costs about 1.2 us whatever it holds: a write and a wait took 2.35 us as two, 0.74 us as one.
//
// Order is the driver's promise: "the operations are enqueued in the order they appear in the array"
// (cuStreamBatchMemOp, CUDA driver API 13.0), so a write behind a wait happens after it, as with single
// calls. Each write keeps the default memory barrier of cuStreamWriteValue64.
//
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstdint>

#include "drivers/cuda/cuda_driver.h"

namespace tandem::cuda {

class WordBatch {
 public:
  // The driver takes fewer than 256.
  static constexpr unsigned kMax = 64;

  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == kMax; }
  // Not when full.
  void AddWrite(CUdeviceptr word, uint64_t value);
  // Until *word >= value by cyclic comparison. Not when full.
  void AddWait(CUdeviceptr word, uint64_t value);
  // Enqueues them in the order in which they came; one alone, and all where the driver has no batches
  // (NOT_SUPPORTED, remembered), by single calls. Afterwards the batch is empty, also after an error.
  Status Enqueue(CudaDriver& driver, CUstream stream);

 private:
  Status EnqueueOneByOne(CudaDriver& driver, CUstream stream, unsigned count);

  std::array<CUstreamBatchMemOpParams, kMax> operations_;
  unsigned count_ = 0;
  bool supported_ = true;
};

}  // namespace tandem::cuda
