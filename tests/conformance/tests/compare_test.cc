// That the conformance suite notices what is wrong: planted errors, each of the smallest kind that matters.
#include "tests/conformance/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "daemon/planner/planner.h"
#include "tests/conformance/choice_rule.h"
#include "tests/conformance/layout.h"
#include "tests/conformance/matrix.h"

namespace tandem::conformance {
namespace {

using ::testing::HasSubstr;

constexpr int kWorld = 3;

Case AllReduceCase(DType dtype, Values values) {
  Matrix matrix(kWorld, 1);
  OpRequest request;
  request.op = Op::kAllReduce;
  request.algorithm = Algorithm::kTwoShot;
  request.operands = {MakeOperand(Role::kInput, dtype, {257}), MakeOperand(Role::kOutput, dtype, {257})};
  matrix.Add(request, {.values = values});
  return matrix.Take()[0];
}

// The output as a right run would leave it.
std::vector<std::byte> RightOutput(const TensorSpec& spec, const Expected& expected) {
  if (expected.values.empty()) return expected.bytes;
  std::vector<std::byte> packed(expected.values.size() * DTypeBytes(spec.dtype));
  for (size_t i = 0; i < expected.values.size(); ++i) {
    StoreFromFloat(packed.data(), spec.dtype, i, static_cast<float>(expected.values[i]));
  }
  return packed;
}

std::string Judge(const Case& test, const Expected& expected, const std::vector<std::byte>& packed) {
  return CompareOutput(test, 0, 1, {.roundings = kWorld}, expected, packed);
}

TEST(CompareTest, ARightSumPassesAndOneWrongElementDoesNot) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2, DType::kI32}) {
    for (Values values : {Values::kRandom, Values::kExact, Values::kSpecial}) {
      if (dtype == DType::kI32 && values == Values::kSpecial) continue;
      const Case test = AllReduceCase(dtype, values);
      const Expected expected = ComputeExpected(test, MakeInputs(test, 5), 0, 1);
      std::vector<std::byte> packed = RightOutput(test.requests[0].operands[1].spec, expected);
      EXPECT_EQ(Judge(test, expected, packed), "") << DTypeName(dtype) << static_cast<int>(values);
      size_t finite = 200;
      while (!std::isfinite(expected.values[finite])) ++finite;
      StoreFromFloat(packed.data(), dtype, finite, static_cast<float>(expected.values[finite]) + 3.0f);
      EXPECT_THAT(Judge(test, expected, packed), HasSubstr("[" + std::to_string(finite) + "]"))
          << DTypeName(dtype);
    }
  }
}

TEST(CompareTest, NaNAndInfinityMustComeOutAsTheyAre) {
  const Case test = AllReduceCase(DType::kF32, Values::kSpecial);
  const Expected expected = ComputeExpected(test, MakeInputs(test, 5), 0, 1);
  const std::vector<std::byte> right = RightOutput(test.requests[0].operands[1].spec, expected);
  std::set<std::string> kinds;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    if (std::isfinite(expected.values[i])) continue;
    kinds.insert(std::isnan(expected.values[i]) ? "nan" : expected.values[i] > 0 ? "inf" : "-inf");
    std::vector<std::byte> packed = right;
    StoreFromFloat(packed.data(), DType::kF32, i, 1.0f);
    EXPECT_NE(Judge(test, expected, packed), "") << i;
    StoreFromFloat(packed.data(), DType::kF32, i,
                   std::isnan(expected.values[i]) ? std::numeric_limits<float>::infinity()
                                                  : static_cast<float>(-expected.values[i]));
    EXPECT_NE(Judge(test, expected, packed), "") << i;
  }
  EXPECT_EQ(kinds.size(), 3u);
}

TEST(CompareTest, MovedBytesMustBeTheSameToTheBit) {
  Matrix matrix(kWorld, 1);
  OpRequest request;
  request.op = Op::kAllGather;
  request.algorithm = Algorithm::kSm;
  request.operands = {MakeOperand(Role::kInput, DType::kF16, {2, 5}),
                      MakeOperand(Role::kOutput, DType::kF16, {2, 15})};
  request.dim = 1;
  matrix.Add(request, {.values = Values::kBits});
  const Case test = matrix.Take()[0];
  const AllInputs inputs = MakeInputs(test, 9);
  const Expected expected = ComputeExpected(test, inputs, 1, 1);
  ASSERT_EQ(expected.bytes.size(), 60u);
  // Element [1, 7] is rank 1's [1, 2].
  EXPECT_EQ(expected.bytes[(15 + 7) * 2], inputs[1][0][(5 + 2) * 2]);
  std::vector<std::byte> packed = expected.bytes;
  packed[45] ^= std::byte{0x80};
  EXPECT_THAT(Judge(test, expected, packed), HasSubstr("1 elements differ; first [1, 7]"));
}

TEST(CompareTest, ASystematicErrorShowsInTheNorm) {
  const Case test = AllReduceCase(DType::kBf16, Values::kRandom);
  Expected expected = ComputeExpected(test, MakeInputs(test, 5), 0, 1);
  std::vector<std::byte> packed = RightOutput(test.requests[0].operands[1].spec, expected);
  for (double& value : expected.values) value *= 1.006;  // within each element's bound
  EXPECT_THAT(Judge(test, expected, packed), HasSubstr("norm"));
}

TEST(CompareTest, MoreRoundingsMayErrMoreInTheNorm) {
  const Case test = AllReduceCase(DType::kBf16, Values::kRandom);
  Expected expected = ComputeExpected(test, MakeInputs(test, 5), 0, 1);
  std::vector<std::byte> packed = RightOutput(test.requests[0].operands[1].spec, expected);
  for (double& value : expected.values) value *= 1.0045;
  EXPECT_THAT(CompareOutput(test, 0, 1, {.roundings = 2}, expected, packed), HasSubstr("norm"));
  EXPECT_EQ(CompareOutput(test, 0, 1, {.roundings = 4}, expected, packed), "");
}

// NCCL on GPUs saturates e5m2; nothing else does, nor NCCL with other types or sums that travel in f32.
TEST(CompareTest, InfinitiesMaySaturateInNcclsSumsOfE5M2Only) {
  const Execution nccl{.roundings = kWorld, .algorithm = Algorithm::kNccl, .cuda = true};
  Case test = AllReduceCase(DType::kF8E5M2, Values::kSpecial);
  const Expected expected = ComputeExpected(test, MakeInputs(test, 5), 0, 1);
  std::vector<std::byte> packed = RightOutput(test.requests[0].operands[1].spec, expected);
  EXPECT_EQ(CompareOutput(test, 0, 1, nccl, expected, packed), "") << "infinities are right too";
  std::set<size_t> infinite, not_numbers;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    if (std::isinf(expected.values[i])) infinite.insert(i);
    if (std::isnan(expected.parts[i])) not_numbers.insert(i);
  }
  ASSERT_FALSE(infinite.empty() || not_numbers.empty());
  for (size_t i : infinite) {
    StoreFromFloat(packed.data(), DType::kF8E5M2, i,
                   std::copysign(57344.0f, static_cast<float>(expected.values[i])));
  }
  EXPECT_EQ(CompareOutput(test, 0, 1, nccl, expected, packed), "");
  EXPECT_NE(CompareOutput(test, 0, 1, {.roundings = kWorld, .algorithm = Algorithm::kNccl}, expected, packed),
            "");
  EXPECT_NE(CompareOutput(test, 0, 1, {.roundings = kWorld, .algorithm = Algorithm::kTwoShot, .cuda = true},
                          expected, packed),
            "");
  const size_t one = *infinite.begin();
  std::vector<std::byte> planted = packed;
  StoreFromFloat(planted.data(), DType::kF8E5M2, one,
                 -std::copysign(57344.0f, static_cast<float>(expected.values[one])));
  EXPECT_NE(CompareOutput(test, 0, 1, nccl, expected, planted), "") << "of the other sign";
  planted = packed;
  StoreFromFloat(planted.data(), DType::kF8E5M2, one,
                 std::copysign(49152.0f, static_cast<float>(expected.values[one])));
  EXPECT_NE(CompareOutput(test, 0, 1, nccl, expected, planted), "") << "not the largest";
  planted = packed;
  StoreFromFloat(planted.data(), DType::kF8E5M2, *not_numbers.begin(), 57344.0f);
  EXPECT_NE(CompareOutput(test, 0, 1, nccl, expected, planted), "") << "a NaN stays one";
  test.requests[0].wire = WireType::kF32;
  EXPECT_NE(CompareOutput(test, 0, 1, nccl, expected, packed), "");
}

// all_gather_matmul of e4m3 into f32 on two ranks; B is [k, 64].
Case Float8Case(int64_t k, bool fast_accumulation) {
  Matrix matrix(2, 1);
  OpRequest request;
  request.op = Op::kAllGatherMatmul;
  request.algorithm = Algorithm::kRing;
  request.fast_accumulation = fast_accumulation;
  request.operands = {MakeOperand(Role::kA, DType::kF8E4M3, {32, k}),
                      MakeOperand(Role::kB, DType::kF8E4M3, {k, 64}),
                      MakeOperand(Role::kC, DType::kF32, {64, 64})};
  matrix.Add(request, {});
  return matrix.Take()[0];
}

// How one instruction adds: in full, or as Hopper's, which aligns all terms to the largest and cuts them
// behind 13 bits.
double InFull(const std::vector<double>& terms) {
  double sum = 0;
  for (double term : terms) sum += term;
  return static_cast<float>(sum);
}
double CutTo14Bits(const std::vector<double>& terms) {
  double largest = 0, sum = 0;
  for (double term : terms) largest = std::max(largest, std::fabs(term));
  const double unit = largest == 0 ? 1 : std::ldexp(1.0, std::ilogb(largest) - 13);
  for (double term : terms) sum += std::trunc(term / unit) * unit;
  return static_cast<float>(sum);
}

// C as instructions of 32 products and the sum so far leave it; without instruction `skip` in every element,
// and without the product of `skip_k` in element 0.
std::vector<std::byte> Accumulate(const AllInputs& inputs, int64_t k,
                                  double (*add)(const std::vector<double>&), int64_t skip = -1,
                                  int64_t skip_k = -1) {
  std::vector<std::byte> packed(64 * 64 * 4);
  const std::vector<double> b = ToDoubles(inputs[0][1], DType::kF8E4M3);
  for (int64_t row = 0; row < 64; ++row) {
    const std::vector<double> a = ToDoubles(inputs[static_cast<size_t>(row / 32)][0], DType::kF8E4M3);
    for (int64_t column = 0; column < 64; ++column) {
      double sum = 0;
      for (int64_t step = 0; step < k / 32; ++step) {
        std::vector<double> terms = {sum};
        for (int64_t at = step * 32; at < step * 32 + 32; ++at) {
          if (at == skip_k && row == 0 && column == 0) continue;
          terms.push_back(a[static_cast<size_t>(row % 32 * k + at)] *
                          b[static_cast<size_t>(at * 64 + column)]);
        }
        if (step != skip) sum = add(terms);
      }
      StoreFromFloat(packed.data(), DType::kF32, static_cast<size_t>(row * 64 + column),
                     static_cast<float>(sum));
    }
  }
  return packed;
}

TEST(CompareTest, AccumulatorsOf14BitsAreRightWithFastAccumulationOnlyAndErrorsAreFound) {
  const Execution cuda{.roundings = 1, .algorithm = Algorithm::kRing, .cuda = true};
  for (int64_t k : {256, 1024}) {
    const Case fast = Float8Case(k, true), slow = Float8Case(k, false);
    const AllInputs inputs = MakeInputs(fast, 5);  // each rank has another B
    const Expected expected = ComputeExpected(fast, inputs, 0, 2);
    ASSERT_TRUE(expected.elements.empty());
    const std::vector<std::byte> cut = Accumulate(inputs, k, CutTo14Bits);
    EXPECT_EQ(CompareOutput(fast, 0, 2, cuda, expected, cut), "") << k;
    const std::vector<std::byte> exact = Accumulate(inputs, k, InFull);
    EXPECT_EQ(CompareOutput(slow, 0, 2, {.roundings = 1}, expected, exact), "") << k;
    // Errors that no mode may make: an instruction left out, or one product of an element, or 1 % off
    // throughout.
    EXPECT_NE(CompareOutput(fast, 0, 2, cuda, expected, Accumulate(inputs, k, CutTo14Bits, 3)), "") << k;
    const std::vector<double> a = ToDoubles(inputs[0][0], DType::kF8E4M3),
                              b = ToDoubles(inputs[0][1], DType::kF8E4M3);
    int64_t largest = 0;
    auto product = [&](int64_t at) {
      return std::fabs(a[static_cast<size_t>(at)] * b[static_cast<size_t>(at * 64)]);
    };
    for (int64_t at = 0; at < k; ++at) largest = product(at) > product(largest) ? at : largest;
    EXPECT_THAT(CompareOutput(fast, 0, 2, cuda, expected, Accumulate(inputs, k, CutTo14Bits, -1, largest)),
                HasSubstr("[0, 0]"))
        << k;
    Expected shifted = expected;
    for (double& value : shifted.values) value *= 1.01;
    EXPECT_NE(CompareOutput(fast, 0, 2, cuda, shifted, exact), "") << k;
    // Without fast accumulation, and on the host, a hundredth of what is allowed above is too much.
    std::vector<std::byte> planted = exact;
    const double off = expected.values[0] + 0x1p-11 * expected.terms[0];
    StoreFromFloat(planted.data(), DType::kF32, 0, static_cast<float>(off));
    EXPECT_EQ(CompareOutput(fast, 0, 2, cuda, expected, planted), "") << k;
    EXPECT_NE(CompareOutput(slow, 0, 2, cuda, expected, planted), "") << k;
    EXPECT_NE(CompareOutput(fast, 0, 2, {.roundings = 1}, expected, planted), "") << k;
  }
}

// The table is the planner's. The rule stands twice: here, and in the planner.
TEST(ChoiceRuleTest, ThePlannerChoosesByItsTable) {
  std::set<Algorithm> chosen;
  for (int world : {2, 4, 8}) {
    for (bool cuda : {false, true}) {
      plan::GroupContext group;
      group.topology = EmulatedTopology(world);
      group.packet_kernels = cuda;
      const TopologyClass topology = Classify(group.topology);
      ASSERT_EQ(topology, TopologyClass::kNvSwitch);
      const plan::Bounds bounds = plan::BoundsOf(Op::kAllReduce, world, topology, cuda, false);
      EXPECT_EQ(bounds.measured, cuda && world != 8);
      for (uint64_t bound : {bounds.low_latency, bounds.one_shot, bounds.two_shot}) {
        for (int over : {-2, 0, 2}) {
          if (bound == 0) continue;
          const uint64_t bytes = bound + static_cast<uint64_t>(over);
          OpRequest request;
          request.op = Op::kAllReduce;
          const Shape shape = {static_cast<int64_t>(bytes / 2)};
          request.operands = {MakeOperand(Role::kInput, DType::kBf16, shape),
                              MakeOperand(Role::kOutput, DType::kBf16, shape)};
          auto plan = plan::MakePlan(std::vector<OpRequest>(static_cast<size_t>(world), request), group);
          ASSERT_TRUE(plan.ok()) << plan.status().ToString();
          const Algorithm expected = AllReduceChoice(bounds, bytes, [&](Algorithm algorithm) {
            return cuda || algorithm != Algorithm::kLowLatency;
          });
          EXPECT_EQ(plan->algorithm, expected) << world << " ranks, " << bytes << " B: " << plan->reason;
          chosen.insert(expected);
        }
      }
    }
  }
  EXPECT_EQ(chosen.size(), 4u) << "packets, one shot, two, and NCCL";
  // The measured bounds of two GPUs without packets.
  EXPECT_EQ(AllReduceChoice({.low_latency = 1, .one_shot = 1 << 20, .two_shot = 1 << 24}, 1 << 19,
                            [](Algorithm) { return true; }),
            Algorithm::kOneShot);
}

TEST(LayoutTest, TensorsKeepTheirShiftAndGuards) {
  Case test = AllReduceCase(DType::kF16, Values::kRandom);
  test.shift = {3, 5};
  test.skew = 1;
  Result<Layout> layout = MakeLayout(test, 2);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->places[0].offset % 256, 2u * (3 + 2));
  EXPECT_EQ(layout->places[1].offset % 256, 2u * (5 + 2));
  EXPECT_GE(layout->places[0].offset, kGuardBytes);
  EXPECT_GE(layout->places[1].offset, layout->places[0].offset + 257 * 2 + kGuardBytes);
  EXPECT_GE(layout->own_bytes, layout->places[1].offset + 257 * 2 + kGuardBytes);
}

TEST(LayoutTest, PartsLieInTheLargerTensor) {
  // Columns 5 * rank to 5 * rank + 4 of a [2, 15] tensor whose rows are 16 elements apart.
  for (Op op : {Op::kAllGather, Op::kReduceScatter}) {
    const size_t part = op == Op::kAllGather ? 0 : 1, whole = 1 - part;
    OpRequest request;
    request.op = op;
    request.dim = -1;
    request.operands = {MakeOperand(Role::kInput, DType::kF16, {2, 5}),
                        MakeOperand(Role::kOutput, DType::kF16, {2, 5})};
    request.operands[whole].spec = {DType::kF16, {2, 15}, {16, 1}};
    request.operands[1].alias_of = 0;
    Matrix matrix(kWorld, 1);
    matrix.Add(request, {.values = Values::kExact});
    const Case test = matrix.Take()[0];
    Result<Layout> layout = MakeLayout(test, 2);
    ASSERT_TRUE(layout.ok());
    EXPECT_EQ(layout->places[0].offset, layout->places[1].offset);
    EXPECT_EQ(layout->places[whole].part, 0u);
    EXPECT_EQ(layout->places[part].part, 2u * 10);
    EXPECT_GE(layout->own_bytes, layout->places[0].offset + (16 + 15) * 2 + kGuardBytes);
    if (op != Op::kAllGather) continue;
    // The input is in its rows, and nothing of it elsewhere.
    const AllInputs inputs = MakeInputs(test, 5);
    Image image = MakeImage(test, *layout, inputs, 2);
    for (size_t row = 0; row < 2; ++row) {
      const std::byte* at = image.own.data() + layout->places[0].offset + (row * 16 + 10) * 2;
      EXPECT_EQ(std::vector<std::byte>(at, at + 10),
                std::vector<std::byte>(&inputs[2][0][row * 10], &inputs[2][0][row * 10] + 10));
    }
  }
}

TEST(ValuesTest, StridedTensorsAreScatteredAndGathered) {
  const TensorSpec spec{DType::kI32, {2, 3}, {1, 4}};
  std::vector<std::byte> packed(24), tensor(64, std::byte{0xcc});
  for (size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<std::byte>(i);
  Scatter(spec, packed, tensor.data());
  EXPECT_EQ(tensor[(2 * 4 + 1) * 4], packed[5 * 4]);
  EXPECT_EQ(tensor[2 * 4], std::byte{0xcc});
  EXPECT_EQ(Gather(spec, tensor.data()), packed);
}

TEST(MatrixTest, NamesAreUniqueAndEveryOperationIsThere) {
  for (int world : {1, 2, 4}) {
    std::set<std::string> names;
    std::set<Op> ops;
    for (const Case& test : MakeMatrix(world, 3)) {
      EXPECT_TRUE(names.insert(test.name).second) << test.name;
      EXPECT_EQ(test.requests.size(), static_cast<size_t>(world));
      ops.insert(test.requests[0].op);
    }
    EXPECT_EQ(ops.size(), world == 1 ? 12u : 13u);
    EXPECT_GT(names.size(), 1000u);
  }
}

}  // namespace
}  // namespace tandem::conformance
