// The fused kernels' programs, and products beside one kernel for the whole collective, run by W ranks in
// one process: by the kernels where the machine has them, step by step on emulated GPUs. Values are small
// integers, exact in 16 bits in any order of summation.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/executor/tests/planned_runner.h"
#include "runtime/executor/tests/test_machine.h"

namespace tandem::runtime {
namespace {

struct Sizes {
  int64_t rows, n;  // of a rank's shard, of C
  bool b_columns;   // B's columns are contiguous
  DType type = DType::kBf16, out = DType::kBf16;
  Algorithm algorithm = Algorithm::kFused;
  int64_t k = 24;
  int shift = 0;     // see Case
  int64_t more = 0;  // rows of an all-reduce beside those of the ranks' shards
};

Operand MakeOperand(Role role, DType dtype, std::vector<int64_t> shape, bool symmetric = false) {
  Operand operand;
  operand.role = role;
  operand.spec.dtype = dtype;
  operand.spec.shape = std::move(shape);
  operand.symmetric = symmetric;
  return operand;
}

Operand MakeB(const Sizes& sizes) {
  Operand b = MakeOperand(Role::kB, sizes.type, {sizes.k, sizes.n});
  if (sizes.b_columns) b.spec.strides = {1, sizes.k};
  return b;
}

Values Multiply(const Values& a, const Values& b, const Sizes& sizes) {
  const auto columns = static_cast<size_t>(sizes.n), k = static_cast<size_t>(sizes.k);
  const size_t rows = a.size() / k;
  Values c(rows * columns);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t l = 0; l < k; ++l) {
      for (size_t j = 0; j < columns; ++j) c[i * columns + j] += a[i * k + l] * b[l * columns + j];
    }
  }
  return c;
}

std::string Name(const char* op, const Sizes& sizes) {
  return std::string(op) + " " + std::string(AlgorithmName(sizes.algorithm)) + " " +
         std::to_string(sizes.rows) + "x" + std::to_string(sizes.n) + "x" + std::to_string(sizes.k) +
         " shift " + std::to_string(sizes.shift) + " " + std::string(DTypeName(sizes.type)) + " to " +
         std::string(DTypeName(sizes.out));
}

// Without the gathered A few rows are multiplied and moved by one kernel.
Case GatherCase(const Sizes& sizes, bool symmetric, bool returns_a = true) {
  Case test;
  test.name = Name("all_gather_matmul", sizes);
  test.fused_kernels = true;
  test.packet_kernels = sizes.algorithm == Algorithm::kLowLatency;
  test.shift = sizes.shift;
  test.request = [=](int, int world_size) {
    OpRequest request;
    request.op = Op::kAllGatherMatmul;
    request.algorithm = sizes.algorithm;
    request.operands = {
        MakeOperand(Role::kA, sizes.type, {sizes.rows, sizes.k}, symmetric), MakeB(sizes),
        MakeOperand(Role::kC, sizes.out, {sizes.rows * world_size, sizes.n}),
        MakeOperand(Role::kGatheredA, sizes.type, {sizes.rows * world_size, sizes.k}, symmetric)};
    if (!returns_a) request.operands.pop_back();
    return request;
  };
  test.compute = [=](int, Tensors& tensors) {
    Values gathered;
    for (const auto& rank : tensors) gathered.insert(gathered.end(), rank[0].begin(), rank[0].end());
    for (auto& rank : tensors) {
      rank[2] = Multiply(gathered, rank[1], sizes);
      if (returns_a) rank[3] = gathered;
    }
  };
  test.output_slots = {2, 3};
  return test;
}

Case ScatterCase(const Sizes& sizes) {
  Case test;
  test.name = Name("matmul_reduce_scatter", sizes);
  test.fused_kernels = true;
  test.packet_kernels = sizes.algorithm == Algorithm::kLowLatency;
  test.shift = sizes.shift;
  test.request = [=](int, int world_size) {
    OpRequest request;
    request.op = Op::kMatmulReduceScatter;
    request.algorithm = sizes.algorithm;
    request.operands = {MakeOperand(Role::kA, sizes.type, {sizes.rows * world_size, sizes.k}), MakeB(sizes),
                        MakeOperand(Role::kC, sizes.out, {sizes.rows, sizes.n}),
                        MakeOperand(Role::kBias, sizes.out, {sizes.n})};
    return request;
  };
  test.compute = [=](int, Tensors& tensors) {
    Values sum;
    for (const auto& rank : tensors) {
      Values own = Multiply(rank[0], rank[1], sizes);
      if (sum.empty()) sum.resize(own.size());
      for (size_t i = 0; i < own.size(); ++i) sum[i] += own[i];
    }
    const size_t part = sum.size() / tensors.size();
    for (size_t r = 0; r < tensors.size(); ++r) {
      tensors[r][2].assign(sum.begin() + static_cast<std::ptrdiff_t>(r * part),
                           sum.begin() + static_cast<std::ptrdiff_t>((r + 1) * part));
      for (size_t i = 0; i < part; ++i) tensors[r][2][i] += tensors[r][3][i % static_cast<size_t>(sizes.n)];
    }
  };
  test.output_slots = {2};
  return test;
}

Case AllReduceCase(const Sizes& sizes, bool symmetric) {
  Case test;
  test.name = Name("matmul_all_reduce", sizes) +
              (sizes.more > 0 ? " and " + std::to_string(sizes.more) + " rows" : "");
  test.fused_kernels = true;
  test.packet_kernels = sizes.algorithm == Algorithm::kLowLatency;
  test.shift = sizes.shift;
  test.request = [=](int, int world_size) {
    OpRequest request;
    request.op = Op::kMatmulAllReduce;
    request.algorithm = sizes.algorithm;
    const int64_t m = sizes.rows * world_size + sizes.more;
    request.operands = {MakeOperand(Role::kA, sizes.type, {m, sizes.k}), MakeB(sizes),
                        MakeOperand(Role::kC, sizes.out, {m, sizes.n}, symmetric)};
    return request;
  };
  test.compute = [=](int, Tensors& tensors) {
    Values sum;
    for (const auto& rank : tensors) {
      Values own = Multiply(rank[0], rank[1], sizes);
      if (sum.empty()) sum.resize(own.size());
      for (size_t i = 0; i < own.size(); ++i) sum[i] += own[i];
    }
    for (auto& rank : tensors) rank[2] = sum;
  };
  test.output_slots = {2};
  return test;
}

// A kernel that waits for its peers' pushes needs a queue beside the one that pushes.
void RunFusedCase(const Case& test, int most_ranks = 8) {
  for (int world_size : {2, 3, 4, 8}) {
    if (world_size > std::min(most_ranks, MostPlannedRanks())) continue;
    if (SharedMachine() != nullptr) {
      RunPlanned(test, world_size, 0, 0);
    } else {
      RunPlanned(test, world_size, 2, 0);
      if (!testing::Test::HasFatalFailure()) RunPlanned(test, world_size, 2, 100);
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Several tiles, pieces that fill them and pieces that do not; an emulated GPU has no tiles.
std::vector<Sizes> AllSizes() {
  std::vector<Sizes> sizes = {{1, 8, false, DType::kBf16, DType::kF32}, {5, 24, true}};
  if (SharedMachine() == nullptr) sizes.push_back({3, 8, true, DType::kF16, DType::kF32});
  if (SharedMachine() != nullptr) {
    const std::pair<DType, DType> types[] = {
        {DType::kF16, DType::kF16}, {DType::kF16, DType::kF32}, {DType::kBf16, DType::kF32}};
    for (auto [type, out] : types) {
      for (bool columns : {false, true}) sizes.push_back({200, 328, columns, type, out});
    }
    sizes.insert(sizes.end(), {{130, 264, false}, {256, 304, true}, {384, 520, false}, {512, 1800, true}});
  }
  return sizes;
}

TEST(PlannedFusedTest, AllGatherMatmul) {
  for (const Sizes& sizes : AllSizes()) {
    RunFusedCase(GatherCase(sizes, false));
    RunFusedCase(GatherCase(sizes, true));
  }
}

// Shapes that are one wave of the skinny kernel's tiles: of each width and either cluster on GPUs, and
// bindings off 16 bytes.
TEST(PlannedFusedTest, SkinnyRows) {
  std::vector<Sizes> all = {{1, 8, false}, {5, 24, true}, {33, 16, false, DType::kF16, DType::kF16}};
  if (SharedMachine() != nullptr) {
    const int64_t shapes[][3] = {{1, 64, 8}, {16, 1000, 136}, {33, 264, 200}, {130, 2056, 72}};
    for (const auto& [rows, n, k] : shapes) {
      for (int i = 0; i < 4; ++i) {
        const DType type = i % 3 == 0 ? DType::kF16 : DType::kBf16;
        all.push_back({rows, n, i % 2 == 0, type, type, Algorithm::kFused, k, i / 2});
      }
    }
  }
  for (const Sizes& sizes : all) {
    RunFusedCase(GatherCase(sizes, false, false));
    RunFusedCase(ScatterCase(sizes));
    RunFusedCase(AllReduceCase(sizes, false));
    if (HasFatalFailure()) return;
  }
}

TEST(PlannedFusedTest, MatmulReduceScatter) {
  for (const Sizes& sizes : AllSizes()) RunFusedCase(ScatterCase(sizes));
}

// Few rows: packets, and kernels with flags of their own where emulated GPUs need not multiply so much.
TEST(PlannedFusedTest, ProductsBesideOneKernelForTheCollective) {
  std::vector<Sizes> all = {{1, 8, false}, {5, 24, true}};
  if (SharedMachine() != nullptr) all.insert(all.end(), {{64, 264, false}, {64, 4096, true}});
  for (Sizes sizes : all) {
    sizes.algorithm = Algorithm::kLowLatency;
    RunFusedCase(GatherCase(sizes, false));
    RunFusedCase(ScatterCase(sizes));
    RunFusedCase(AllReduceCase(sizes, false));
    sizes.out = DType::kF32;
    RunFusedCase(AllReduceCase(sizes, true));
  }
}

// From 1024 rows of a rank on there are several tiles: long sums for emulated GPUs, so few of them.
TEST(PlannedFusedTest, MatmulAllReduce) {
  for (const Sizes& sizes : AllSizes()) {
    RunFusedCase(AllReduceCase(sizes, false));
    RunFusedCase(AllReduceCase(sizes, true));
  }
  RunFusedCase(AllReduceCase({1024, 8, true}, false), 2);
  RunFusedCase(AllReduceCase({1024, 8, false}, true), 2);
  if (SharedMachine() == nullptr) return;
  for (const Sizes& sizes : {Sizes{1536, 520, false}, Sizes{2048, 264, true}}) {
    RunFusedCase(AllReduceCase(sizes, false));
    RunFusedCase(AllReduceCase(sizes, true));
  }
}

// Parts that are not equal: short ones, owners of none, few rows and many, one tile an owner and several.
TEST(PlannedFusedTest, MatmulAllReduceOfAnyRows) {
  struct Rows {
    int64_t shard, more, n;
  };
  std::vector<Rows> all = {{0, 1, 8}, {1, 1, 16}, {4, 1, 8}};
  if (SharedMachine() != nullptr) {
    all.insert(
        all.end(),
        {{18, 1, 1000}, {100, 1, 264}, {259, 3, 520}, {128, 1, 1800}, {1037, 1, 264}, {2057, 1, 1032}});
  }
  for (const Rows& rows : all) {
    for (const auto& [type, out] : {std::pair(DType::kBf16, DType::kBf16), {DType::kF16, DType::kF32}}) {
      for (int i = 0; i < 2; ++i) {
        const Sizes sizes = {rows.shard, rows.n, i == 1, type, out, Algorithm::kFused, 24, i, rows.more};
        RunFusedCase(AllReduceCase(sizes, i == 1));
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::runtime
