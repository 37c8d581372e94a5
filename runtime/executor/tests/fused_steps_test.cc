// The parts of a collective's expansion that one kernel can do, and parts that it refuses.
#include "runtime/executor/fused_steps.h"

#include <gtest/gtest.h>

#include <utility>

namespace tandem::runtime {
namespace {

plan::View At(int rank, uint64_t offset) {
  plan::View view;
  view.ref.space = plan::Space::kWorkspace;
  view.ref.rank = static_cast<uint8_t>(rank);
  view.ref.offset = offset;
  view.dtype = DType::kBf16;
  view.extent = {8, 8};
  view.stride = {8, 1};
  return view;
}

class FusedStepsTest : public testing::Test {
 protected:
  template <class Work>
  void Add(Work work) {
    step_.expansion.emplace_back().work = std::move(work);
  }
  void Matmul(uint64_t to) {
    plan::MatmulStep step;
    step.c = At(0, to);
    Add(step);
  }
  void Wait(int from) { Add(plan::WaitStep{static_cast<uint8_t>(from), 3}); }
  void Signal(int to) { Add(plan::SignalStep{static_cast<uint8_t>(to), 4}); }
  void Copy(uint64_t from, int to) { Add(plan::CopyStep{At(0, from), At(to, 1 << 16), true}); }
  void Sum(uint64_t own, uint64_t to) {
    plan::ReduceStep step;
    step.sources = {At(0, 4096), At(0, own)};
    step.dst = At(0, to);
    Add(step);
  }
  Result<std::vector<FusedSteps>> Cut() const {
    TANDEM_ASSIGN_OR_RETURN(FusedCut cut, CutFusedSteps(step_, 0));
    return std::move(cut.parts);
  }
  void ExpectMalformedAt(int i) const {
    auto cut = Cut();
    ASSERT_FALSE(cut.ok());
    EXPECT_EQ(cut.status().code(), Code::kInvalidArgument);
    EXPECT_NE(cut.status().message().find("step " + std::to_string(i) + " "), std::string::npos)
        << cut.status().ToString();
  }

  plan::CollectiveStep step_;
};

TEST_F(FusedStepsTest, CutsWaitsSumsSignalsAndDeliveries) {
  Wait(1);
  Matmul(0);
  Signal(0);
  Matmul(128);
  Copy(128, 2);
  Signal(2);
  Matmul(256);
  Wait(1);
  Wait(2);
  Sum(256, 512);
  Copy(512, 1);
  Signal(1);
  Copy(512, 2);
  Signal(2);
  auto cut = Cut();
  ASSERT_TRUE(cut.ok()) << cut.status().ToString();
  ASSERT_EQ(cut->size(), 3u);
  const FusedSteps &first = (*cut)[0], &sent = (*cut)[1], &summed = (*cut)[2];
  EXPECT_EQ(first.waits.size(), 1u);
  EXPECT_NE(first.done, nullptr);
  EXPECT_TRUE(first.deliveries.empty());
  EXPECT_TRUE(sent.waits.empty());
  EXPECT_EQ(sent.done, nullptr);
  ASSERT_EQ(sent.deliveries.size(), 1u);
  EXPECT_EQ(sent.deliveries[0].signal->to_rank, 2);
  ASSERT_NE(summed.sum, nullptr);
  EXPECT_EQ(summed.own, 1);
  EXPECT_EQ(summed.sum_waits.size(), 2u);
  ASSERT_EQ(summed.deliveries.size(), 2u);
  EXPECT_EQ(summed.deliveries[1].copy->dst.ref.rank, 2);
}

TEST_F(FusedStepsTest, ProductIsStoredOnce) {
  Matmul(0);
  Copy(0, 1);
  Signal(1);
  Copy(0, 2);
  ExpectMalformedAt(3);
}

TEST_F(FusedStepsTest, AnOwnWordMayStandBeforeAllDeliveries) {
  Matmul(0);
  Wait(0);
  Copy(0, 1);
  Signal(1);
  Matmul(128);
  Copy(128, 2);
  Signal(2);
  auto cut = CutFusedSteps(step_, 0);
  ASSERT_TRUE(cut.ok()) << cut.status().ToString();
  ASSERT_NE(cut->entered, nullptr);
  EXPECT_EQ(cut->entered->from_rank, 0);
  EXPECT_TRUE(cut->parts[0].sum_waits.empty());
  EXPECT_EQ(cut->parts[1].deliveries.size(), 1u);
}

TEST_F(FusedStepsTest, ADeliveryMayBeToldByWordsSideBySideAndTheEndAwaited) {
  const auto tell = [this](uint16_t index) { Add(plan::SignalStep{1, index}); };
  Matmul(0);
  Copy(0, 1);
  for (uint16_t index : {4, 5, 6}) tell(index);
  Wait(1);
  Wait(2);
  auto cut = CutFusedSteps(step_, 0);
  ASSERT_TRUE(cut.ok()) << cut.status().ToString();
  ASSERT_EQ(cut->parts[0].deliveries.size(), 1u);
  EXPECT_EQ(cut->parts[0].deliveries[0].signal->index, 4);
  EXPECT_EQ(cut->parts[0].deliveries[0].signals, 3);
  ASSERT_EQ(cut->closing.size(), 2u);
  EXPECT_EQ(cut->closing[1]->from_rank, 2);
  EXPECT_EQ(cut->entered, nullptr);
  step_ = {};
  Matmul(0);
  Copy(0, 1);
  tell(4);
  tell(6);
  ExpectMalformedAt(3);
}

TEST_F(FusedStepsTest, NoDeliveryWaitsForAPeerOrAloneForAWord) {
  Matmul(0);
  Wait(1);
  Copy(0, 1);
  ExpectMalformedAt(2);
  step_ = {};
  Matmul(0);
  Copy(0, 1);
  Signal(1);
  Matmul(128);
  Wait(0);
  Copy(128, 2);
  ExpectMalformedAt(5);
}

TEST_F(FusedStepsTest, DeliveryNeedsItsOwnSignal) {
  Matmul(0);
  Copy(0, 1);
  Signal(2);
  ExpectMalformedAt(2);
}

TEST_F(FusedStepsTest, DeliveryIsOfWhatWasMadeLast) {
  Matmul(0);
  Copy(128, 1);
  ExpectMalformedAt(1);
}

TEST_F(FusedStepsTest, EndsWithNothingOpen) {
  Matmul(0);
  Copy(0, 1);
  ExpectMalformedAt(2);
}

TEST_F(FusedStepsTest, SumsAProductOnce) {
  Matmul(0);
  Sum(0, 512);
  Sum(0, 512);
  ExpectMalformedAt(2);
}

TEST_F(FusedStepsTest, HasNoPlaceForOthers) {
  Matmul(0);
  Add(plan::NopStep{});
  ExpectMalformedAt(1);
}

plan::View Matrix(std::vector<int64_t> extent, DType dtype = DType::kBf16) {
  plan::View view;
  view.dtype = dtype;
  view.extent = std::move(extent);
  view.stride = ContiguousStrides(view.extent);
  return view;
}

TEST(SkinnyLayoutOfTest, TakesViewsThatBelongTogether) {
  const auto step = [](Op op, int64_t a_rows, int64_t c_rows) {
    plan::CollectiveStep collective;
    collective.op = op;
    plan::MatmulStep& matmul = collective.skinny.emplace().matmul;
    matmul.a = Matrix({a_rows, 16});
    matmul.b = Matrix({16, 24});
    matmul.c = Matrix({c_rows, 24});
    collective.skinny->most_ctas = 2;
    return collective;
  };
  const auto kind_of = [](const plan::CollectiveStep& collective) {
    const auto layout = SkinnyLayoutOf(collective, 4);
    EXPECT_TRUE(layout.ok()) << layout.status().ToString();
    EXPECT_EQ(layout->rows, 3);
    EXPECT_EQ(layout->rows_of(2), 3);
    return layout->kind;
  };
  EXPECT_EQ(kind_of(step(Op::kAllGatherMatmul, 3, 12)), SkinnyKind::kGather);
  EXPECT_EQ(kind_of(step(Op::kMatmulReduceScatter, 12, 3)), SkinnyKind::kScatter);
  EXPECT_EQ(kind_of(step(Op::kMatmulAllReduce, 12, 12)), SkinnyKind::kAllReduce);
  for (int64_t m : {9, 10}) {  // the last rank has none, or one
    EXPECT_EQ(kind_of(step(Op::kMatmulAllReduce, m, m)), SkinnyKind::kAllReduce);
    EXPECT_EQ(SkinnyLayoutOf(step(Op::kMatmulAllReduce, m, m), 4)->rows_of(3), m - 9);
  }

  const auto refuses = [&](Op op, int64_t a_rows, int64_t c_rows, auto change) {
    plan::CollectiveStep collective = step(op, a_rows, c_rows);
    change(&*collective.skinny);
    const auto layout = SkinnyLayoutOf(collective, 4);
    return layout.status().code() == Code::kInvalidArgument;
  };
  const auto nothing = [](plan::SkinnyStep*) {};
  EXPECT_TRUE(refuses(Op::kAllGather, 3, 12, nothing));
  EXPECT_TRUE(refuses(Op::kAllGatherMatmul, 3, 11, nothing));
  EXPECT_TRUE(refuses(Op::kMatmulReduceScatter, 13, 3, nothing));
  EXPECT_TRUE(refuses(Op::kMatmulReduceScatter, 3, 3, nothing));
  EXPECT_TRUE(refuses(Op::kMatmulAllReduce, 12, 3, nothing));
  EXPECT_TRUE(refuses(Op::kMatmulAllReduce, 10, 12, nothing));            // C of more rows than A
  EXPECT_TRUE(refuses(Op::kAllGatherMatmul, 1 << 20, 1 << 22, nothing));  // more than a wave
  EXPECT_TRUE(refuses(Op::kAllGatherMatmul, 3, 12, [](plan::SkinnyStep* few) { few->most_ctas = 1; }));
  EXPECT_TRUE(refuses(Op::kMatmulReduceScatter, 12, 3, [](plan::SkinnyStep* few) {
    few->matmul.b = Matrix({8, 24});
  }));
  EXPECT_TRUE(refuses(Op::kAllGatherMatmul, int64_t{1} << 40, int64_t{1} << 40, nothing));
  EXPECT_TRUE(
      refuses(Op::kMatmulReduceScatter, 12, 3, [](plan::SkinnyStep* few) { few->matmul.accumulate = true; }));
  EXPECT_TRUE(refuses(Op::kMatmulReduceScatter, 12, 3, [](plan::SkinnyStep* few) {
    few->matmul.a = Matrix({3, 4, 16});
  }));
  EXPECT_TRUE(refuses(Op::kMatmulReduceScatter, 12, 3, [](plan::SkinnyStep* few) {
    few->matmul.has_bias = true;
    few->matmul.bias = Matrix({23});
  }));
  const auto scaled = [](int64_t scales, bool travel) {
    return [=](plan::SkinnyStep* few) {
      few->matmul.has_scale_a = true;
      few->matmul.scale_a = Matrix({scales}, DType::kF32);
      few->scales_travel = travel;
    };
  };
  EXPECT_FALSE(refuses(Op::kAllGatherMatmul, 3, 12, scaled(3, true)));
  EXPECT_FALSE(refuses(Op::kAllGatherMatmul, 3, 12, scaled(12, false)));
  EXPECT_FALSE(refuses(Op::kAllGatherMatmul, 3, 12, scaled(1, false)));
  EXPECT_TRUE(refuses(Op::kAllGatherMatmul, 3, 12, scaled(3, false)));
  EXPECT_TRUE(refuses(Op::kAllGatherMatmul, 3, 12, scaled(12, true)));
  EXPECT_TRUE(refuses(Op::kMatmulReduceScatter, 12, 3, scaled(3, true)));
}

}  // namespace
}  // namespace tandem::runtime
