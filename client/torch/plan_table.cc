#include "client/torch/plan_table.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <span>
#include <utility>

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
  plan->family = from.family;
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
    ResultForm form{result.dtype, {result.shape, result.shape + result.dims}, {}, result.rows != 0};
    form.strides = ContiguousStrides(form.shape);
    plan->results.push_back(std::move(form));
  }
  return plan;
}

// Puts a plan in the place of one with the same slots in symmetric memory. Families of one key may differ in
// extents that do not follow the rows.
void Put(GroupTable::Plans* plans, const std::shared_ptr<TablePlan>& plan) {
  std::erase_if(*plans, [&](const auto& other) {
    return other->symmetric == plan->symmetric && other->family.most == plan->family.most &&
           (plan->family.most == 0 || other->plan == plan->plan);
  });
  plans->push_back(plan);
}

void PutCall(GroupTable* group, const CallKey& key, const std::shared_ptr<TablePlan>& plan) {
  if (plan->family.most == 0) {
    Put(&group->plans[{key.words().begin(), key.words().end()}], plan);
  } else {
    const RowlessKey rowless(key);
    Put(&group->families[{rowless.words().begin(), rowless.words().end()}], plan);
  }
}

void Erase(GroupTable::PlansByKey* all, const std::shared_ptr<TablePlan>& plan) {
  for (auto& [key, plans] : *all) std::erase(plans, plan);
  std::erase_if(*all, [](const auto& entry) { return entry.second.empty(); });
}

struct ChosenPlan {
  std::shared_ptr<TablePlan> plan;
  CallRows rows;
};

// A plan that `fits` takes. A plan made for the call's shapes goes first, then the family of the most rows.
template <typename Fits>
ChosenPlan Choose(const GroupTable& group, const CallKey& key, Fits fits) {
  if (const auto plans = group.plans.find(key.words()); plans != group.plans.end()) {
    for (const auto& plan : plans->second) {
      if (fits(*plan)) return {plan, {plan->rows}};
    }
  }
  if (group.families.empty()) return {};
  const RowlessKey rowless(key);
  const auto families = group.families.find(rowless.words());
  if (families == group.families.end()) return {};
  ChosenPlan chosen;
  for (const auto& plan : families->second) {
    if (!fits(*plan) || (chosen.plan != nullptr && chosen.plan->family.most >= plan->family.most)) continue;
    if (const auto rows = plan->RowsOf(rowless.extents())) chosen = {plan, *rows};
  }
  return chosen;
}

bool Follows(const tandem_torch_rows& rows, size_t argument) {
  return argument < 32 && (rows.arguments >> argument & 1) != 0;
}

}  // namespace

std::optional<CallRows> TablePlan::RowsOf(std::span<const int64_t> first_extents) const {
  const auto at = static_cast<size_t>(family.argument);
  if (first_extents.size() != extents.size() || at >= extents.size()) return std::nullopt;
  if (first_extents[at] < 1 || extents[at] < 1) return std::nullopt;
  const int64_t shared = std::gcd(first_extents[at], extents[at]);
  CallRows call{-1, first_extents[at] / shared, extents[at] / shared};
  const auto divides = [&](int64_t extent) { return extent % call.parts == 0; };
  if (!divides(rows)) return std::nullopt;
  call.rows = call.Extent(rows);
  if (call.rows < family.least || call.rows > family.most || call.rows % family.unit != 0)
    return std::nullopt;
  for (size_t i = 0; i < extents.size(); ++i) {
    const bool follows = Follows(family, i);
    if (follows && !divides(extents[i])) return std::nullopt;
    if (first_extents[i] != (follows ? call.Extent(extents[i]) : extents[i])) return std::nullopt;
  }
  for (const ResultForm& result : results) {
    if (result.rows && !divides(result.shape.front())) return std::nullopt;
  }
  return call;
}

uint64_t TablePlan::SlotBytes(const tandem_torch_slot& slot, const CallRows& call) const {
  const auto at = static_cast<size_t>(slot.index);
  const bool follows = slot.source == TANDEM_TORCH_ARGUMENT ? Follows(family, at) : results[at].rows;
  return follows ? call.Bytes(slot.bytes) : slot.bytes;
}

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
  const auto known = found->by_id.find(plan);
  return known == found->by_id.end() ? nullptr : known->second;
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
  decltype(found->by_id) plans;
  {
    std::lock_guard lock(mutex_);
    std::erase(groups_, found);
    found->plans.clear();
    found->families.clear();
    plans.swap(found->by_id);
  }
  std::lock_guard running(found->running);
  for (const auto& [id, plan] : plans) plan->removed = true;
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
  try {
    auto ranges = std::make_shared<SymmetricRanges>(*found->symmetric);
    std::erase_if(*ranges, [&](const SymmetricRange& range) { return range.begin == begin; });
    found->symmetric = ranges->empty() ? nullptr : std::move(ranges);
  } catch (const std::bad_alloc&) {
    // The address may be other memory's soon: from now on Python runs the group's calls.
    found->hidden = true;
  }
}

PlanTable::Found PlanTable::Find(std::string_view group_name, const CallKey& key) const {
  std::lock_guard lock(mutex_);
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    if ((*group)->hidden || (*group)->name != group_name) continue;
    ChosenPlan found = Choose(**group, key, [](const TablePlan&) { return true; });
    return {*group, std::move(found.plan), found.rows, (*group)->symmetric};
  }
  return {};
}

PlanTable::Found PlanTable::FindSymmetric(const std::shared_ptr<GroupTable>& group, const CallKey& key,
                                          uint32_t symmetric) const {
  std::lock_guard lock(mutex_);
  ChosenPlan found = Choose(*group, key, [&](const TablePlan& plan) { return plan.symmetric == symmetric; });
  return {group, std::move(found.plan), found.rows, group->symmetric};
}

uint64_t PlanTable::AddPlan(uint64_t group, const CallKey& key, const tandem_torch_plan& plan) {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  if (found == nullptr) return 0;
  std::shared_ptr<TablePlan> made = Copy(plan);
  if (made->family.most > 0) {
    const RowlessKey rowless(key);
    made->extents.assign(rowless.extents().begin(), rowless.extents().end());
  }
  std::lock_guard lock(mutex_);
  made->id = next_id_++;
  found->by_id.emplace(made->id, made);
  PutCall(found.get(), key, made);
  return made->id;
}

void PlanTable::AddCall(uint64_t group, const CallKey& key, uint64_t plan) {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  const std::shared_ptr<TablePlan> known = PlanOf(group, plan);
  if (found == nullptr || known == nullptr) return;
  std::lock_guard lock(mutex_);
  PutCall(found.get(), key, known);
}

void PlanTable::RemovePlan(uint64_t group, uint64_t plan) {
  const std::shared_ptr<GroupTable> found = GroupOf(group);
  const std::shared_ptr<TablePlan> known = PlanOf(group, plan);
  if (found == nullptr || known == nullptr) return;
  {
    std::lock_guard lock(mutex_);
    Erase(known->family.most == 0 ? &found->plans : &found->families, known);
    found->by_id.erase(plan);
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
