// File: plan_table.h
//
// The plans that kernels of torch.ops.tandem can launch without Python, by process group and call. Knows
// nothing of torch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/torch/call_key.h"
#include "client/torch/torch_ops.h"

namespace tandem::torch_ops {

// The form of a result that the kernel allocates.
struct ResultForm {
  int dtype = 0;  // enum tandem_dtype
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // contiguous
  bool rows = false;             // whether the first extent follows the rows
};

// The rows of one call. An extent that follows them is times / parts of the extent in the call that added the
// plan. There is no remainder.
struct CallRows {
  int64_t rows = -1;  // of the launch; -1: the plan is of one shape
  int64_t times = 1, parts = 1;

  int64_t Extent(int64_t added) const { return added / parts * times; }
  uint64_t Bytes(uint64_t added) const {
    return added / static_cast<uint64_t>(parts) * static_cast<uint64_t>(times);
  }
};

// A plan and how a call is bound to it. Constant but for `removed` and `last_use`.
struct TablePlan {
  uint64_t id = 0;
  tandem_plan* plan = nullptr;      // Python's, valid until `removed`
  tandem_stream* stream = nullptr;  // of the host backend
  int64_t deadline_ms = 0;
  int64_t rows = -1;             // of the call that it was added with, of a family
  tandem_torch_rows family{};    // `most` 0: the plan serves that call's shapes alone
  std::vector<int64_t> extents;  // of a family: that call's RowlessKey::extents()
  std::vector<tandem_torch_slot> slots;
  uint32_t may_be_symmetric = 0;  // slots that can lie in symmetric memory, by bit
  uint32_t symmetric = 0;         // those that do
  std::vector<ResultForm> results;
  size_t arguments = 0;  // tensors that a call has at least
  uint64_t staging_bytes = 0;
  bool removed = false;  // guarded by the group's `running`
  std::atomic<uint64_t> last_use = 0;

  // The rows of a call with these first extents, of a family. Nothing: it serves no such call.
  std::optional<CallRows> RowsOf(std::span<const int64_t> first_extents) const;
  uint64_t SlotBytes(const tandem_torch_slot& slot, const CallRows& call) const;
};

// Addresses of symmetric tensors of a group.
struct SymmetricRange {
  uintptr_t begin = 0, end = 0;
};
using SymmetricRanges = std::vector<SymmetricRange>;

struct StagingMemory {
  const tandem_memory* memory = nullptr;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// The plans of one process group.
struct GroupTable {
  uint64_t id = 0;
  std::string name;
  // Held while a plan of the group is launched and, on the host backend, waited for. The thread that holds it
  // may come again: a long wait runs Python, which may remove plans.
  std::recursive_mutex running;
  StagingMemory staging;  // guarded by `running`
  std::atomic<uint64_t> calls = 0;
  // Guarded by the PlanTable's mutex.
  bool hidden = false;
  std::shared_ptr<const SymmetricRanges> symmetric;  // null: none
  // Plans for one call differ in the slots that lie in symmetric memory.
  using Plans = std::vector<std::shared_ptr<TablePlan>>;
  using PlansByKey = std::unordered_map<StoredKey, Plans, CallKeyHash, CallKeyEqual>;
  PlansByKey plans;     // by all that a call depends on
  PlansByKey families;  // by RowlessKey
  std::unordered_map<uint64_t, std::shared_ptr<TablePlan>> by_id;
};

// Thread-safe. No function waits for a launch while it holds the table's mutex.
class PlanTable {
 public:
  struct Found {
    std::shared_ptr<GroupTable> group;
    std::shared_ptr<TablePlan> plan;  // null: the call is not in the table
    CallRows rows;
    std::shared_ptr<const SymmetricRanges> symmetric;
  };

  uint64_t OpenGroup(std::string_view name);
  void HideGroup(uint64_t group);
  void CloseGroup(uint64_t group);
  void SetStaging(uint64_t group, const StagingMemory& staging);
  const tandem_memory* Staging(uint64_t group) const;
  void AddSymmetric(uint64_t group, SymmetricRange range);
  void RemoveSymmetric(uint64_t group, uintptr_t begin);

  // The newest group with the name that is not hidden, and a plan for the call. A plan made for the call's
  // shapes goes first, then the family of the most rows.
  Found Find(std::string_view group_name, const CallKey& key) const;
  // That with these slots in symmetric memory.
  Found FindSymmetric(const std::shared_ptr<GroupTable>& group, const CallKey& key, uint32_t symmetric) const;

  // Adds the plan for calls with the key, a family's also for calls with other rows. Returns its number; 0 if
  // there is no such group.
  uint64_t AddPlan(uint64_t group, const CallKey& key, const tandem_torch_plan& plan);
  // Does nothing if there is no such plan.
  void AddCall(uint64_t group, const CallKey& key, uint64_t plan);
  // Waits for calls that run the plan.
  void RemovePlan(uint64_t group, uint64_t plan);

  uint64_t Tick(uint64_t group);
  uint64_t LastUse(uint64_t group, uint64_t plan) const;

 private:
  std::shared_ptr<GroupTable> GroupOf(uint64_t group) const;
  std::shared_ptr<TablePlan> PlanOf(uint64_t group, uint64_t plan) const;

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<GroupTable>> groups_;  // oldest first
  uint64_t next_id_ = 1;
};

}  // namespace tandem::torch_ops
