// The tables that come with Tandem: they are read, are of what their names say, and plans on such a node go
// by them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <vector>

#include "daemon/planner/planner.h"
#include "daemon/planner/tuning/tuning_file.h"
#include "daemon/topology/topology.h"

namespace tandem::daemon {
namespace {

using plan::TuningEntry;
using plan::TuningTable;

const std::filesystem::path kTables = TANDEM_SOURCE_DIR "/deploy/tuning";

std::vector<std::filesystem::path> Tables() {
  std::vector<std::filesystem::path> tables;
  for (const auto& file : std::filesystem::directory_iterator(kTables)) {
    if (file.path().extension() == ".toml") tables.push_back(file.path());
  }
  std::sort(tables.begin(), tables.end());
  return tables;
}

// "h200-nvswitch-4": "NVIDIA H200" begins the model's name.
std::string GpuOf(const std::filesystem::path& table) {
  std::string name = table.stem().string().substr(0, table.stem().string().find('-'));
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return "NVIDIA " + name;
}

// And four.
int WorldOf(const std::filesystem::path& table) {
  const std::string name = table.stem().string();
  return std::stoi(name.substr(name.rfind('-') + 1));
}

// The entry's request in bf16, as its shape says; without operands if it is of another kind.
OpRequest RequestOf(const TuningEntry& entry) {
  OpRequest request;
  const bool b_rows = entry.key.traits == "b_rows";
  if (entry.key.types != "bf16 x bf16 -> bf16" || !(b_rows || entry.key.traits.empty()) ||
      entry.shape.size() != 3)
    return request;
  const int64_t world = entry.key.world_size, m = entry.shape[0], n = entry.shape[1], k = entry.shape[2];
  const bool gathers = entry.key.op == Op::kAllGatherMatmul,
             scatters = entry.key.op == Op::kMatmulReduceScatter;
  request.op = entry.key.op;
  request.operands = {{Role::kA, {DType::kBf16, {gathers ? m / world : m, k}, {}}, false, -1},
                      {Role::kB,
                       {DType::kBf16, {k, n}, b_rows ? std::vector<int64_t>{} : std::vector<int64_t>{1, k}},
                       false,
                       -1},
                      {Role::kC, {DType::kBf16, {scatters ? m / world : m, n}, {}}, false, -1}};
  return request;
}

TEST(ShippedTables, AreOfWhatTheirNamesSay) {
  ASSERT_FALSE(Tables().empty());
  for (const auto& path : Tables()) {
    SCOPED_TRACE(path);
    const Result<TuningTable> table = LoadTuning(path.string());
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    EXPECT_GT(table->size(), 0u);
    for (const TuningEntry* entry : table->Entries()) {
      EXPECT_EQ(entry->key.world_size, WorldOf(path));
      EXPECT_EQ(entry->key.gpu, table->Entries()[0]->key.gpu) << "of one model";
      EXPECT_EQ(entry->key.gpu.find(GpuOf(path)), 0u) << entry->key.gpu;
      EXPECT_EQ(entry->key.topology_class, "nvswitch");
    }
  }
}

TEST(ShippedTables, HaveAtMostThreeMeasuredCandidatesAnEntry) {
  for (const auto& path : Tables()) {
    const TuningTable table = *LoadTuning(path.string());
    for (const TuningEntry* entry : table.Entries()) {
      SCOPED_TRACE(path.string() + " " + plan::TuningShapeText(entry->shape));
      EXPECT_LE(entry->candidates.size(), 3u);
      for (const plan::TuningCandidate& candidate : entry->candidates) {
        EXPECT_GT(candidate.samples, 0);
        EXPECT_FALSE(plan::MeasuredOnRequestOnly(candidate.algorithm)) << AlgorithmName(candidate.algorithm);
      }
    }
  }
}

TEST(ShippedTables, DecideForTheirNodes) {
  for (const auto& path : Tables()) {
    const TuningTable table = *LoadTuning(path.string());
    plan::GroupContext group;
    group.topology = EmulatedTopology(WorldOf(path));
    group.gpu_model = table.Entries().at(0)->key.gpu;
    for (GpuInfo& gpu : group.topology.gpus) gpu.model = group.gpu_model;
    group.tuning = &table;
    group.fused_kernels = group.fused_by_choice = group.packet_kernels = true;
    int decided = 0;
    for (const TuningEntry* entry : table.Entries()) {
      const OpRequest request = RequestOf(*entry);
      if (request.operands.empty()) continue;
      SCOPED_TRACE(path.string() + " " + std::string(OpName(entry->key.op)) + " " +
                   plan::TuningShapeText(entry->shape));
      const auto plan =
          plan::MakePlan(std::vector<OpRequest>(static_cast<size_t>(WorldOf(path)), request), group);
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      EXPECT_EQ(plan->algorithm, entry->candidates[0].algorithm) << plan->reason;
      EXPECT_EQ(plan->reason.find("measured fastest"), 0u) << plan->reason;
      ++decided;
    }
    EXPECT_GT(decided, 20);
  }
}

// cuBLASLt adds no f32 bias to a product in bf16, and the plain kernel that does is far slower than the
// table's figure for a product without bias. The fused kernel takes the bias as it is, so it is the fastest
// whatever the table has.
TEST(ShippedTables, SayNothingOfAnEpilogueThatCublasLtRefuses) {
  const TuningTable table = *LoadTuning((kTables / "h200-nvswitch-2.toml").string());
  plan::GroupContext group;
  group.topology = EmulatedTopology(2);
  group.gpu_model = table.Entries().at(0)->key.gpu;
  group.tuning = &table;
  group.fused_kernels = group.fused_by_choice = group.packet_kernels = true;
  int others = 0;
  for (const TuningEntry* entry : table.Entries()) {
    OpRequest request = RequestOf(*entry);
    if (request.op != Op::kAllGatherMatmul || request.operands.empty()) continue;
    others += entry->candidates[0].algorithm != Algorithm::kFused;
    request.operands.push_back({Role::kBias, {DType::kF32, {entry->shape[1]}, {}}, false, -1});
    const auto plan = plan::MakePlan(std::vector<OpRequest>(2, request), group);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    EXPECT_EQ(plan->algorithm, Algorithm::kFused)
        << plan::TuningShapeText(entry->shape) << ": " << plan->reason;
    // Where nobody has tuned: by its prediction.
    plan::GroupContext untuned = group;
    untuned.tuning = nullptr;
    EXPECT_EQ(plan::MakePlan(std::vector<OpRequest>(2, request), untuned)->algorithm, Algorithm::kFused);
    // Without fused kernels the times of cuBLASLt's products decide nothing.
    plan::GroupContext without = group;
    without.fused_kernels = false;
    EXPECT_EQ(plan::MakePlan(std::vector<OpRequest>(2, request), without)->measured_us, 0);
  }
  EXPECT_GT(others, 0) << "no entry that the bias could have changed";
}

}  // namespace
}  // namespace tandem::daemon
