// File: cuda_lane.h
//
// Lanes are streams, events are events: the stream-ordered half of the CUDA backend.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/lane/word_batch.h"
#include "kernels/cuda/matmul/matmul_plan.h"

namespace tandem::cuda {

class CudaEvent : public Event {
 public:
  static Result<std::unique_ptr<CudaEvent>> Create(std::shared_ptr<CudaDevice> device);
  ~CudaEvent() override;
  bool Done() const override;
  int64_t TimeNs() const override;

 private:
  friend class CudaLane;
  explicit CudaEvent(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  std::shared_ptr<CudaDevice> device_;
  CUevent event_ = nullptr;
  std::atomic<bool> recorded_{false};
};

class CudaLane : public Lane {
 public:
  // `streams`: 1, or 2, which are made one right after the other, so that two front ends of the GPU serve
  // them.
  static Result<std::unique_ptr<CudaLane>> Create(std::shared_ptr<CudaDevice> device,
                                                  std::shared_ptr<MatmulChooser> chooser, int priority,
                                                  int streams = 1);
  ~CudaLane() override;

  Status WriteWord(Word* word, uint64_t value) override;
  Status WaitWord(const Word* word, uint64_t value) override;
  Status Copy(const CopyArgs& args) override;
  Status Matmul(const MatmulArgs& args) override;
  Status Reduce(const ReduceArgs& args) override;
  Status Norm(const NormArgs& args) override;
  Status Nccl(const NcclArgs& args) override;
  Status Collective(const CollectiveArgs& args) override;
  Status Record(Event* event) override;
  Status Wait(Event* event) override;
  void HoldWords() override { holds_words_ = true; }
  Status FlushWords() override;
  int stream_count() const override { return static_cast<int>(streams_.size()); }
  Status UseStream(int index) override;

  // The one that it is on.
  CUstream stream() const { return stream_; }

 private:
  CudaLane(std::shared_ptr<CudaDevice> device, std::shared_ptr<MatmulChooser> chooser)
      : device_(std::move(device)), chooser_(std::move(chooser)) {}

  // Memory that has become too small, which the lane's work up to an event may still read.
  struct Outgrown {
    VmmAllocation memory;
    std::unique_ptr<CudaEvent> behind;
  };
  // Makes `transposed_` one of `bytes` at least, and gives back what it has outgrown and nothing reads any
  // more.
  Status MakeWorkspace();
  Status GrowTransposed(size_t bytes);
  // Makes the device's context current and enqueues the words that other work must not overtake.
  Status Enter();

  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<MatmulChooser> chooser_;
  std::vector<CUstream> streams_;
  CUstream stream_ = nullptr;  // of these, the one in use
  WordBatch words_;
  bool holds_words_ = false;
  VmmAllocation workspace_;    // of products and fused matmuls; made by the first
  VmmAllocation fused_state_;  // of fused matmuls; made by the first
  VmmAllocation transposed_;   // copies of fp8 operands, of the largest product that needed them
  std::vector<Outgrown> outgrown_;
};

}  // namespace tandem::cuda
