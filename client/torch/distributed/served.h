// File: served.h
//
// Runs a collective of torch.distributed by Tandem's ops, or says why the process group's own backend does.
#pragma once

#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "client/torch/distributed/groups.h"
#include "client/torch/distributed/tallies.h"

namespace tandem::torch_distributed {

// One tensor's part of a call: it is gathered, scattered, exchanged, or summed or broadcast in place.
struct TensorStep {
  at::Tensor input;
  at::Tensor output;  // undefined: the input itself
};

// A call of torch.distributed. Whether Tandem runs it depends on op, type, reduction, bytes and group alone, so
// that all ranks choose alike.
struct Call {
  Collective op = Collective::kAllReduce;
  std::shared_ptr<ServedGroup> group{};
  ::c10d::OpType type = ::c10d::OpType::UNKNOWN;
  ::c10d::ReduceOp::RedOpType reduction = ::c10d::ReduceOp::SUM;
  int64_t root = 0;
  bool async = false;
  std::vector<TensorStep> steps{};
  std::vector<at::Tensor> outputs{};                            // of the Work
  std::function<void()> after{};                                // runs behind the steps, on their stream
  std::function<c10::intrusive_ptr<::c10d::Work>()> backend{};  // the call by the process group's own backend
};

// Runs a call by Tandem, or by its backend. Raises DistBackendError where Tandem has taken the call and failed.
c10::intrusive_ptr<::c10d::Work> Run(Call call);

// Counts a group's call whose form alone keeps it from Tandem.
void LeaveToBackend(const Call& call, const at::Tensor& tensor, const char* reason);

// All elements of a tensor in the order of memory. Undefined where they have gaps or share memory.
at::Tensor Flat(const at::Tensor& tensor);

}  // namespace tandem::torch_distributed
