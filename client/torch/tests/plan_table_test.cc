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

tandem_torch_plan Described() {
  static const int64_t shape[] = {2, 0, 3};
  static const tandem_torch_result result{TANDEM_DTYPE_BF16, 3, shape, 0};
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
  const uint64_t plan = table.AddPlan(group, key, Described());
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
  const uint64_t plan = table.AddPlan(group, KeyOf({1}), Described());
  table.AddCall(group, KeyOf({2}), plan);
  table.AddCall(group, KeyOf({3}), plan + 1);  // no such plan
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
  const uint64_t elsewhere = table.AddPlan(group, KeyOf({1}), described);
  slots[1].symmetric = TANDEM_TORCH_SYMMETRIC;
  const uint64_t symmetric = table.AddPlan(group, KeyOf({1}), described);
  const CallKey key = KeyOf({1});
  const PlanTable::Found found = table.Find("0", key);
  EXPECT_EQ(found.plan->may_be_symmetric, 2u);
  EXPECT_EQ(table.FindSymmetric(found.group, key, 0).plan->id, elsewhere);
  EXPECT_EQ(table.FindSymmetric(found.group, key, 2).plan->id, symmetric);
  EXPECT_EQ(table.FindSymmetric(found.group, key, 1).plan, nullptr);
  EXPECT_EQ(table.FindSymmetric(found.group, KeyOf({2}), 0).plan, nullptr);
  table.RemovePlan(group, elsewhere);
  EXPECT_EQ(table.Find("0", key).plan->id, symmetric);
  EXPECT_EQ(table.FindSymmetric(found.group, key, 0).plan, nullptr);
  const uint64_t again = table.AddPlan(group, KeyOf({1}), described);  // in the other's place
  EXPECT_EQ(table.FindSymmetric(found.group, key, 2).plan->id, again);
}

// A call of `rows` x 16 and of a weight of 16 x `columns` as its key, and a result in proportion to the rows.
CallKey ProductOf(int64_t rows, int64_t columns) {
  CallKey key;
  key.Add(uint64_t{9});  // the op
  const int64_t a[] = {rows, 16}, b[] = {16, columns}, scalar[] = {7};
  key.AddShape(a);
  key.AddShape(b);
  key.AddShape({scalar, 0});
  return key;
}

// The family that a call of 6 rows has added: 2 ranks' parts of its result follow the rows.
tandem_torch_plan Family(int64_t most, int64_t least = 1) {
  static const int64_t shape[] = {3, 5};
  static const tandem_torch_result result{TANDEM_DTYPE_BF16, 2, shape, 1};
  static const tandem_torch_slot slots[] = {
      {TANDEM_TORCH_ARGUMENT, 0, 0, 0, 6 * 16 * 2, 0},
      {TANDEM_TORCH_ARGUMENT, 1, 0, 0, 16 * 5 * 2, 4096},
      {TANDEM_TORCH_RESULT, 0, 1, 0, 3 * 5 * 2, 8192},
  };
  tandem_torch_plan plan{};
  plan.plan = reinterpret_cast<tandem_plan*>(most);  // another one for each bound
  plan.rows = 6;
  plan.slots = slots;
  plan.slot_count = 3;
  plan.results = &result;
  plan.result_count = 1;
  plan.family = {most, least, 2, 0, 1};
  return plan;
}

TEST(PlanTable, AFamilyServesOtherNumbersOfRows) {
  PlanTable table;
  const uint64_t group = table.OpenGroup("0");
  const uint64_t plan = table.AddPlan(group, ProductOf(6, 5), Family(100));
  for (const int64_t rows : {2, 6, 8, 64, 100}) {
    const PlanTable::Found found = table.Find("0", ProductOf(rows, 5));
    ASSERT_NE(found.plan, nullptr) << rows;
    EXPECT_EQ(found.plan->id, plan);
    EXPECT_EQ(found.rows.rows, rows);
    EXPECT_EQ(found.rows.Extent(3), rows / 2);
    EXPECT_EQ(found.plan->SlotBytes(found.plan->slots[0], found.rows), static_cast<uint64_t>(rows) * 16 * 2);
    EXPECT_EQ(found.plan->SlotBytes(found.plan->slots[1], found.rows), 16u * 5 * 2);
    EXPECT_EQ(found.plan->SlotBytes(found.plan->slots[2], found.rows),
              static_cast<uint64_t>(rows) / 2 * 5 * 2);
  }
  EXPECT_EQ(table.Find("0", ProductOf(7, 5)).plan, nullptr) << "no multiple of the unit";
  EXPECT_EQ(table.Find("0", ProductOf(102, 5)).plan, nullptr) << "above the bound";
  EXPECT_EQ(table.Find("0", ProductOf(0, 5)).plan, nullptr);
  EXPECT_EQ(table.Find("0", ProductOf(6, 4)).plan, nullptr) << "another weight";
  table.RemovePlan(group, plan);
  EXPECT_EQ(table.Find("0", ProductOf(6, 5)).plan, nullptr);
}

TEST(PlanTable, TheWeightOfAFamilyStaysTheSame) {
  PlanTable table;
  const uint64_t group = table.OpenGroup("0");
  // Keys without first extents are equal: the weights differ in theirs.
  const auto call = [](int64_t rows, int64_t depth) {
    CallKey key;
    const int64_t a[] = {rows, 4}, b[] = {depth, 5};
    key.AddShape(a);
    key.AddShape(b);
    return key;
  };
  const uint64_t shallow = table.AddPlan(group, call(6, 16), Family(100));
  EXPECT_EQ(table.Find("0", call(12, 32)).plan, nullptr) << "twice the depth is no twice the rows";
  const uint64_t deep = table.AddPlan(group, call(6, 32), Family(200));
  EXPECT_EQ(table.Find("0", call(12, 32)).plan->id, deep);
  EXPECT_EQ(table.Find("0", call(12, 16)).plan->id, shallow);
}

TEST(PlanTable, TheFamilyOfTheMostRowsServes) {
  PlanTable table;
  const uint64_t group = table.OpenGroup("0");
  table.AddPlan(group, ProductOf(6, 5), Family(200, 4));
  table.AddPlan(group, ProductOf(6, 5), Family(100));
  EXPECT_EQ(table.Find("0", ProductOf(8, 5)).plan->family.most, 200);
  EXPECT_EQ(table.Find("0", ProductOf(2, 5)).plan->family.most, 100) << "too few rows for the other";
}

TEST(PlanTable, KnowsTheGroupsSymmetricRanges) {
  PlanTable table;
  const uint64_t group = table.OpenGroup("0");
  table.AddPlan(group, KeyOf({1}), Described());
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
  table.AddPlan(first, KeyOf({1}), Described());
  table.HideGroup(first);
  EXPECT_EQ(table.Find("0", KeyOf({1})).group, nullptr);
  const uint64_t second = table.OpenGroup("0");
  EXPECT_EQ(table.Find("0", KeyOf({1})).plan, nullptr);
  EXPECT_EQ(table.Find("0", KeyOf({1})).group->id, second);
  table.CloseGroup(second);
  EXPECT_EQ(table.Find("0", KeyOf({1})).group, nullptr) << "the first is hidden for good";
  EXPECT_EQ(table.AddPlan(second, KeyOf({1}), Described()), 0u);
}

TEST(PlanTable, CountsCallsForTheLeastRecentlyUsed) {
  PlanTable table;
  const uint64_t group = table.OpenGroup("0");
  const uint64_t plan = table.AddPlan(group, KeyOf({1}), Described());
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
  const uint64_t plan = table.AddPlan(group, KeyOf({1}), Described());
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
  table.AddPlan(group, KeyOf({1}), Described());
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
