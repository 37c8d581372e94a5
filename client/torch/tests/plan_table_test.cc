// The table of plans: what is found, by whose name, and what removal waits for.
#include "client/torch/plan_table.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

namespace tandem::torch_ops {
namespace {

CallKey KeyOf(std::initializer_list<uint64_t> words) {
  CallKey key;
  for (uint64_t word : words) key.Add(word);
  return key;
}
StoredKey Stored(const CallKey& key) { return {key.words().begin(), key.words().end()}; }

tandem_torch_plan Described() {
  static const int64_t shape[] = {2, 0, 3};
  static const tandem_torch_result result{TANDEM_DTYPE_BF16, 3, shape};
  static const tandem_torch_slot slot{TANDEM_TORCH_RESULT, 0, 1, 0, 12, 256};
  tandem_torch_plan plan{};
  plan.slots = &slot;
  plan.slot_count = 1;
  plan.results = &result;
  plan.result_count = 1;
  plan.deadline_ms = 7;
  return plan;
}

TEST(PlanTable, FindsAPlanByGroupAndCall) {
  PlanTable table;
  const uint64_t group = table.OpenGroup("0");
  const CallKey key = KeyOf({1, 2});
  EXPECT_EQ(table.Find("0", key).plan, nullptr);
  const uint64_t plan = table.AddPlan(group, Stored(key), Described());
  const PlanTable::Found found = table.Find("0", key);
  ASSERT_NE(found.plan, nullptr);
  EXPECT_EQ(found.plan->id, plan);
  EXPECT_EQ(found.plan->deadline_ms, 7);
  EXPECT_EQ(found.plan->slots.at(0).offset, 256u);
  EXPECT_EQ(found.plan->results.at(0).shape, (std::vector<int64_t>{2, 0, 3}));
  EXPECT_EQ(found.plan->results.at(0).strides, (std::vector<int64_t>{3, 3, 1}));
  EXPECT_EQ(table.Find("0", KeyOf({1, 3})).plan, nullptr);
  EXPECT_EQ(table.Find("0", KeyOf({1})).plan, nullptr);
  EXPECT_EQ(table.Find("1", key).group, nullptr);
}

TEST(PlanTable, OnePlanServesSeveralCalls) {
  PlanTable table;
  const uint64_t group = table.OpenGroup("0");
  const uint64_t plan = table.AddPlan(group, {1}, Described());
  table.AddCall(group, {2}, plan);
  table.AddCall(group, {3}, plan + 1);  // no such plan
  EXPECT_EQ(table.Find("0", KeyOf({2})).plan, table.Find("0", KeyOf({1})).plan);
  EXPECT_EQ(table.Find("0", KeyOf({3})).plan, nullptr);
  table.RemovePlan(group, plan);
  EXPECT_EQ(table.Find("0", KeyOf({1})).plan, nullptr);
  EXPECT_EQ(table.Find("0", KeyOf({2})).plan, nullptr);
}

TEST(PlanTable, KeepsAPlanForEachSetOfSymmetricSlots) {
  PlanTable table;
  const uint64_t group = table.OpenGroup("0");
  tandem_torch_plan described = Described();
  tandem_torch_slot slots[2] = {*described.slots, *described.slots};
  slots[1].symmetric = TANDEM_TORCH_ELSEWHERE;
  described.slots = slots;
  described.slot_count = 2;
  const uint64_t elsewhere = table.AddPlan(group, {1}, described);
  slots[1].symmetric = TANDEM_TORCH_SYMMETRIC;
  const uint64_t symmetric = table.AddPlan(group, {1}, described);
  const CallKey key = KeyOf({1});
  const PlanTable::Found found = table.Find("0", key);
  EXPECT_EQ(found.plan->may_be_symmetric, 2u);
  EXPECT_EQ(table.FindSymmetric(*found.group, key, 0)->id, elsewhere);
  EXPECT_EQ(table.FindSymmetric(*found.group, key, 2)->id, symmetric);
  EXPECT_EQ(table.FindSymmetric(*found.group, key, 1), nullptr);
  EXPECT_EQ(table.FindSymmetric(*found.group, KeyOf({2}), 0), nullptr);
  table.RemovePlan(group, elsewhere);
  EXPECT_EQ(table.Find("0", key).plan->id, symmetric);
  EXPECT_EQ(table.FindSymmetric(*found.group, key, 0), nullptr);
  const uint64_t again = table.AddPlan(group, {1}, described);  // in the other's place
  EXPECT_EQ(table.FindSymmetric(*found.group, key, 2)->id, again);
}

TEST(PlanTable, KnowsTheGroupsSymmetricRanges) {
  PlanTable table;
  const uint64_t group = table.OpenGroup("0");
  table.AddPlan(group, {1}, Described());
  const CallKey key = KeyOf({1});
  EXPECT_EQ(table.Find("0", key).symmetric, nullptr);
  table.AddSymmetric(group, {100, 200});
  table.AddSymmetric(group, {300, 400});
  table.AddSymmetric(group + 100, {500, 600});  // no such group
  ASSERT_NE(table.Find("0", key).symmetric, nullptr);
  EXPECT_EQ(table.Find("0", key).symmetric->size(), 2u);
  table.RemoveSymmetric(group, 100);
  table.RemoveSymmetric(group, 350);  // none begins there
  ASSERT_EQ(table.Find("0", key).symmetric->size(), 1u);
  EXPECT_EQ(table.Find("0", key).symmetric->front().begin, 300u);
  table.RemoveSymmetric(group, 300);
  EXPECT_EQ(table.Find("0", key).symmetric, nullptr);
}

TEST(PlanTable, ALaterGroupOfTheNameGetsNoPlanOfTheFirst) {
  PlanTable table;
  const uint64_t first = table.OpenGroup("0");
  table.AddPlan(first, {1}, Described());
  table.HideGroup(first);
  EXPECT_EQ(table.Find("0", KeyOf({1})).group, nullptr);
  const uint64_t second = table.OpenGroup("0");
  EXPECT_EQ(table.Find("0", KeyOf({1})).plan, nullptr);
  EXPECT_EQ(table.Find("0", KeyOf({1})).group->id, second);
  table.CloseGroup(second);
  EXPECT_EQ(table.Find("0", KeyOf({1})).group, nullptr) << "the first is hidden for good";
  EXPECT_EQ(table.AddPlan(second, {1}, Described()), 0u);
}

TEST(PlanTable, CountsCallsForTheLeastRecentlyUsed) {
  PlanTable table;
  const uint64_t group = table.OpenGroup("0");
  const uint64_t plan = table.AddPlan(group, {1}, Described());
  EXPECT_EQ(table.LastUse(group, plan), 0u);
  EXPECT_EQ(table.Tick(group), 1u);
  EXPECT_EQ(table.Tick(group), 2u);
  EXPECT_EQ(table.Tick(group + 100), 0u);
  table.Find("0", KeyOf({1})).plan->last_use = 2;
  EXPECT_EQ(table.LastUse(group, plan), 2u);
}

TEST(PlanTable, RemovalWaitsForACallThatRuns) {
  PlanTable table;
  const uint64_t group = table.OpenGroup("0");
  const uint64_t plan = table.AddPlan(group, {1}, Described());
  const PlanTable::Found found = table.Find("0", KeyOf({1}));
  std::future<void> removal;
  {
    std::lock_guard running(found.group->running);
    EXPECT_FALSE(found.plan->removed);
    removal = std::async(std::launch::async, [&] { table.RemovePlan(group, plan); });
    while (table.Find("0", KeyOf({1})).plan != nullptr) std::this_thread::yield();
    EXPECT_FALSE(found.plan->removed);
    EXPECT_NE(removal.wait_for(std::chrono::milliseconds(0)), std::future_status::ready);
  }
  removal.get();
  EXPECT_TRUE(found.plan->removed);
}

TEST(PlanTable, ClosingAGroupRemovesItsPlans) {
  PlanTable table;
  const uint64_t group = table.OpenGroup("0");
  table.AddPlan(group, {1}, Described());
  const PlanTable::Found found = table.Find("0", KeyOf({1}));
  table.SetStaging(group, {nullptr, nullptr, 64});
  EXPECT_EQ(found.group->staging.bytes, 64u);
  table.CloseGroup(group);
  EXPECT_TRUE(found.plan->removed);
  EXPECT_EQ(found.group->staging.bytes, 0u);
}

TEST(CallKey, TellsTextsAndExtentsApart) {
  CallKey sum, average, longer;
  sum.Add("sum");
  average.Add("avg");
  longer.Add("sum of a longer text");
  EXPECT_FALSE(CallKeyEqual()(sum.words(), average.words()));
  EXPECT_EQ(longer.words().size(), 4u);
  CallKey full;
  for (int i = 0; i < 513; ++i) full.Add(uint64_t{1});
  EXPECT_TRUE(full.overflowed());
  EXPECT_TRUE(full.words().empty());
}

}  // namespace
}  // namespace tandem::torch_ops
