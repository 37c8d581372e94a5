// File: plan_launch.h
//
// Runs a call by a plan of the table: the operands' addresses are bound, and the plan is launched. CPU
// tensors are copied to and from the group's staging memory, and the launch is waited for.
#pragma once

#include <span>
#include <string>

#include "client/torch/call_arguments.h"
#include "client/torch/plan_table.h"

namespace tandem::torch_ops {

// The functions of libtandem.so, and where the time in them is counted.
void UseLibrary(const tandem_torch_functions& functions);
void MeasureLibrary(bool on);
uint64_t LibraryNanoseconds();
void FreeStatus(tandem_status* status);

// torch's number of one of Tandem's types; -1 if it has none.
int32_t TorchDType(int tandem_dtype);

enum class RunState {
  kRan,
  kGone,    // nothing was launched: the plan has been removed, or the staging memory is too small
  kFailed,  // see RunOutcome::status and text
};
struct RunOutcome {
  RunState state = RunState::kRan;
  tandem_status* status = nullptr;  // the caller's
  std::string text;                 // of the failure
};

// The slots, by bit, that lie in symmetric memory in this call, of those that can in the plan.
uint32_t SymmetricSlots(const TablePlan& plan, const CallRows& rows, const SymmetricRanges& ranges,
                        std::span<const CallTensor> arguments, std::span<const AtenTensorHandle> results);

// `results` are tensors of the plan's forms, for these rows. Every rank must run the call. `wait_on` continues a long wait
// for the plan with this number: it runs Python. Returns false if that fails. Throws if torch fails.
RunOutcome RunPlan(GroupTable& group, TablePlan& plan, const CallRows& rows,
                   std::span<const CallTensor> arguments, std::span<const AtenTensorHandle> results,
                   bool (*wait_on)(uint64_t plan));

}  // namespace tandem::torch_ops
