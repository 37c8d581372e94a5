#include "daemon/planner/cost/norm_cost.h"

#include "daemon/planner/forms/norm_form.h"
#include "program/norm_layout.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// A block that has a whole row sends it to each peer. With three peers two kernels were faster for few rows:
// 8 of 8192 bf16 took 6.5 us on four H200s. One kernel took 7.6 us on four H100s.
constexpr int64_t kLeastRowsOfSeveral = 64;
// Clusters of two gain nothing: 64 rows of 8192 bf16 take 7.3 us on two H100s, and 7.2 with one block each.
// With eight blocks 8 rows take 4.3 us, and 4.8 with one each.
constexpr int kLeastRowBlocks = 4;
// A thread block has at least a warp of words.
constexpr int64_t kLeastWords = 32;

}  // namespace

std::string WhyNormedApartFaster(int64_t rows, int world_size) {
  if (world_size <= 2 || rows >= kLeastRowsOfSeveral) return {};
  return Text("faster for fewer than ", kLeastRowsOfSeveral, " rows of more than two ranks");
}

int FastestRowBlocks(const NormStep& norm, int blocks, int world_size) {
  for (int shared = kMaxNormRowBlocks; shared >= kLeastRowBlocks; shared /= 2) {
    if (RowWords(norm) >= kLeastWords * shared && CanShareRows(norm, shared, blocks, world_size))
      return shared;
  }
  return 1;
}

}  // namespace tandem::plan
