// File: reduce.h
//
// The host backend's sum of several sources, or another reduction (kernels/reduction.h): in the order given,
// with fp32 accumulators and one rounding; integers sum exactly (modulo their width).
#pragma once

#include <array>
#include <vector>

#include "kernels/backend.h"
#include "kernels/host/strided.h"
#include "kernels/host/task.h"
#include "tandem/status.h"

namespace tandem::host {

// A reduction, checked and merged, ready to run.
struct BoxReduce {
  struct Source {
    const std::byte* data = nullptr;
    DType dtype = DType::kF32;
  };
  StridedBox box;  // views: sources in order, then the destination, then the bias if there is one
  // At most as many as a box has views; inside the object, so that preparing a reduction allocates nothing.
  class Sources {
   public:
    void push_back(const Source& source) { sources_[count_++] = source; }
    size_t size() const { return count_; }
    const Source& operator[](size_t index) const { return sources_[index]; }
    const Source* begin() const { return sources_.data(); }
    const Source* end() const { return sources_.data() + count_; }

   private:
    std::array<Source, kMaxBoxViews> sources_;
    size_t count_ = 0;
  };
  Sources sources;
  std::byte* destination = nullptr;
  DType dtype = DType::kF32;
  ReduceOp reduce_op = ReduceOp::kSum;
  float scale = 1.0f;
  bool has_bias = false;
  Source bias;
  const std::byte* result_scale = nullptr;  // one float32, or null
};

// INVALID_ARGUMENT when extents differ, integers and floats mix, integers are scaled, bias or result scale do
// not fit, a reduction that is no sum has a factor or an epilogue, or a bitwise one has floats.
Result<BoxReduce> PrepareReduce(const ReduceArgs& args);

// The destination may be one of the sources.
void RunReduce(const BoxReduce& reduce, const TaskContext& context);

// The same on contiguous elements, all of `dtype`: destination[i] = scale * Σ sources[s][i], or another
// reduction of the i-th elements. For the stand-in of NCCL.
void ReduceContiguous(const std::vector<const std::byte*>& sources, std::byte* destination, DType dtype,
                      int64_t count, ReduceOp reduce_op, float scale);

}  // namespace tandem::host
