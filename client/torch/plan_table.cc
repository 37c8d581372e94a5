#include "client/torch/plan_table.h"

#include <algorithm>
#include <span>

namespace tandem::torch_ops {
namespace {

std::vector<int64_t> ContiguousStrides(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

std::shared_ptr<TablePlan> Copy(const tandem_torch_plan& from) {
  auto plan = std::make_shared<TablePlan>();
  plan->plan = from.plan;
  plan->stream = from.stream;
  plan->deadline_ms = from.deadline_ms;
  plan->rows = from.rows;
  plan->staging_bytes = from.staging_bytes;
  plan->slots.assign(from.slots, from.slots + from.slot_count);
  for (size_t i = 0; i < plan->slots.size(); ++i) {
    const tandem_torch_slot& slot = plan->slots[i];
    if (slot.source == TANDEM_TORCH_ARGUMENT) {
      plan->arguments = std::max(plan->arguments, static_cast<size_t>(slot.index) + 1);
    }
    if (slot.symmetric != TANDEM_TORCH_NEVER) plan->may_be_symmetric |= uint32_t{1} << i;
    if (slot.symmetric == TANDEM_TORCH_SYMMETRIC) plan->symmetric |= uint32_t{1} << i;
  }
  for (size_t i = 0; i < from.result_count; ++i) {
    const tandem_torch_result& result = from.results[i];
    ResultForm form{result.dtype, {result.shape, result.shape + result.dims}, {}};
    form.strides = ContiguousStrides(form.shape);
    plan->results.push_back(std::move(form));
  }
  return plan;
}

// Puts a plan in the place of one with the same slots in symmetric memory.
void Put(GroupTable::Plans* plans, const std::shared_ptr<TablePlan>& plan) {
  std::erase_if(*plans, [&](const auto& other) { return other->symmetric == plan->symmetric; });
  plans->push_back(plan);
}

}  // namespace

uint64_t PlanTable::OpenGroup(std::string_view name) {
  auto group = std::make_shared<GroupTable>();
  group->name = name;
  std::lock_guard lock(mutex_);
  group->id = next_id_++;
  groups_.push_back(group);
  return group->id;
}

std::shared_ptr<GroupTable> PlanTable::GroupOf(uint64_t group) const {
  std::lock_guard lock(mutex_);
  for (const auto& one : groups_) {
    if (one->id == group) return one;
  }
  return nullptr;
}

std::shared_ptr<TablePlan> PlanTable::PlanOf(uint64_t group, uint64_t plan) const {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  if (found == nullptr) return nullptr;
  std::lock_guard lock(mutex_);
  for (const auto& [key, plans] : found->plans) {
    for (const auto& one : plans) {
      if (one->id == plan) return one;
    }
  }
  return nullptr;
}

void PlanTable::HideGroup(uint64_t group) {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  if (found == nullptr) return;
  std::lock_guard lock(mutex_);
  found->hidden = true;
}

void PlanTable::CloseGroup(uint64_t group) {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  if (found == nullptr) return;
  decltype(found->plans) plans;
  {
    std::lock_guard lock(mutex_);
    std::erase(groups_, found);
    plans.swap(found->plans);
  }
  std::lock_guard running(found->running);
  for (const auto& [key, some] : plans) {
    for (const auto& plan : some) plan->removed = true;
  }
  found->staging = {};
}

void PlanTable::SetStaging(uint64_t group, const StagingMemory& staging) {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  if (found == nullptr) return;
  std::lock_guard running(found->running);
  found->staging = staging;
}

const tandem_memory* PlanTable::Staging(uint64_t group) const {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  if (found == nullptr) return nullptr;
  std::lock_guard running(found->running);
  return found->staging.memory;
}

void PlanTable::AddSymmetric(uint64_t group, SymmetricRange range) {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  if (found == nullptr) return;
  std::lock_guard lock(mutex_);
  auto ranges = std::make_shared<SymmetricRanges>();
  if (found->symmetric != nullptr) *ranges = *found->symmetric;
  ranges->push_back(range);
  found->symmetric = std::move(ranges);
}

void PlanTable::RemoveSymmetric(uint64_t group, uintptr_t begin) {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  if (found == nullptr) return;
  std::lock_guard lock(mutex_);
  if (found->symmetric == nullptr) return;
  auto ranges = std::make_shared<SymmetricRanges>(*found->symmetric);
  std::erase_if(*ranges, [&](const SymmetricRange& range) { return range.begin == begin; });
  found->symmetric = ranges->empty() ? nullptr : std::move(ranges);
}

PlanTable::Found PlanTable::Find(std::string_view group_name, const CallKey& key) const {
  std::lock_guard lock(mutex_);
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    if ((*group)->hidden || (*group)->name != group_name) continue;
    auto plans = (*group)->plans.find(key.words());
    if (plans == (*group)->plans.end()) return {*group, nullptr, nullptr};
    return {*group, plans->second.front(), (*group)->symmetric};
  }
  return {};
}

std::shared_ptr<TablePlan> PlanTable::FindSymmetric(const GroupTable& group, const CallKey& key,
                                                    uint32_t symmetric) const {
  std::lock_guard lock(mutex_);
  auto plans = group.plans.find(key.words());
  if (plans == group.plans.end()) return nullptr;
  for (const auto& plan : plans->second) {
    if (plan->symmetric == symmetric) return plan;
  }
  return nullptr;
}

uint64_t PlanTable::AddPlan(uint64_t group, const StoredKey& key, const tandem_torch_plan& plan) {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  if (found == nullptr) return 0;
  std::shared_ptr<TablePlan> made = Copy(plan);
  std::lock_guard lock(mutex_);
  made->id = next_id_++;
  Put(&found->plans[key], made);
  return made->id;
}

void PlanTable::AddCall(uint64_t group, const StoredKey& key, uint64_t plan) {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  const std::shared_ptr<TablePlan> known = PlanOf(group, plan);
  if (found == nullptr || known == nullptr) return;
  std::lock_guard lock(mutex_);
  Put(&found->plans[key], known);
}

void PlanTable::RemovePlan(uint64_t group, uint64_t plan) {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  const std::shared_ptr<TablePlan> known = PlanOf(group, plan);
  if (found == nullptr || known == nullptr) return;
  {
    std::lock_guard lock(mutex_);
    for (auto& [key, plans] : found->plans) std::erase(plans, known);
    std::erase_if(found->plans, [](const auto& entry) { return entry.second.empty(); });
  }
  std::lock_guard running(found->running);
  known->removed = true;
}

uint64_t PlanTable::Tick(uint64_t group) {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  return found == nullptr ? 0 : ++found->calls;
}

uint64_t PlanTable::LastUse(uint64_t group, uint64_t plan) const {
  const std::shared_ptr<TablePlan> known = PlanOf(group, plan);
  return known == nullptr ? 0 : known->last_use.load();
}

}  // namespace tandem::torch_ops
