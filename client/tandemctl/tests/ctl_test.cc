#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "client/tandemctl/explain.h"
#include "client/tandemctl/json.h"
#include "client/tandemctl/table.h"
#include "client/tandemctl/top.h"
#include "client/tandemctl/topology_json.h"
#include "client/tandemctl/views.h"
#include "daemon/topology/topology_file.h"

namespace tandem::ctl {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(TableTest, AlignsColumnsAndKeepsNoTrailingSpace) {
  Table table({"name", ">bytes", "note"});
  table.Add({"a", "1 B"});
  table.Add({"längerer", "100 MiB", "x"});
  EXPECT_EQ(table.Text(),
            "name        bytes  note\n"
            "a             1 B\n"
            "längerer  100 MiB  x\n");
}

TEST(TableTest, QuantitiesHaveUnits) {
  EXPECT_EQ(Bytes(0), "0 B");
  EXPECT_EQ(Bytes(1023), "1023 B");
  EXPECT_EQ(Bytes(1536), "1.5 KiB");
  EXPECT_EQ(Bytes(uint64_t{2} << 30), "2 GiB");
  EXPECT_EQ(Micros(0), "-");
  EXPECT_EQ(Micros(12.34), "12.3 us");
  EXPECT_EQ(Micros(4560), "4.56 ms");
  EXPECT_EQ(Age(59), "59 s");
  EXPECT_EQ(Age(7800), "2 h 10 min");
  EXPECT_EQ(Join(std::vector<int>{0, 2}), "0, 2");
}

TEST(ViewsTest, MatrixShowsLinksAndPcieDistance) {
  auto topology = LoadTopology(TANDEM_FIXTURES "/dgx-1v.toml");
  ASSERT_TRUE(topology.ok()) << topology.status().ToString();
  admin::v1::GetTopologyReply reply;
  reply.set_topology_toml(WriteTopology(*topology));
  reply.set_topology_class("hybrid_cube_mesh");
  auto text = TopologyText(reply);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_THAT(*text, HasSubstr("8 GPUs, hybrid_cube_mesh"));
  EXPECT_THAT(*text, testing::ContainsRegex("GPU0 +X +NV[12]"));
  EXPECT_THAT(*text, HasSubstr(std::string(PcieDistanceName(topology->pcie[0][7]))));
}

TEST(ViewsTest, CutListingsSaySo) {
  admin::v1::ListPlansReply plans;
  plans.add_plans()->mutable_info()->set_plan_id(4);
  EXPECT_THAT(PlansText(plans), Not(HasSubstr("cut")));
  plans.set_next_page_token("3.4");
  EXPECT_THAT(PlansText(plans), HasSubstr("go on with --page 3.4"));
  EXPECT_THAT(PlanText(plans.plans(0), ""), Not(HasSubstr("cut")));
  plans.mutable_plans(0)->set_truncated(true);
  EXPECT_THAT(PlanText(plans.plans(0), ""), HasSubstr("(cut: "));
  admin::v1::ListGroupsReply groups;
  EXPECT_THAT(GroupsText(groups), Not(HasSubstr("cut")));
  groups.set_truncated(true);
  EXPECT_THAT(GroupsText(groups), HasSubstr("(cut: "));
  admin::v1::ListSessionsReply sessions;
  sessions.set_truncated(true);
  EXPECT_THAT(SessionsText(sessions), HasSubstr("(cut: "));
  admin::v1::ListPoolsReply pools;
  pools.set_truncated(true);
  EXPECT_THAT(PoolsText(pools, false), HasSubstr("(cut: "));
  admin::v1::GetQueueReply queue;
  queue.set_truncated(true);
  EXPECT_THAT(QueueText(queue), HasSubstr("(cut: "));
}

TEST(ViewsTest, ListingsCountWhatOtherUsersHave) {
  admin::v1::ListSessionsReply sessions;
  EXPECT_THAT(SessionsText(sessions), Not(HasSubstr("other users")));
  sessions.set_hidden(3);
  EXPECT_EQ(SessionsText(sessions), "no sessions\n(and 3 sessions of other users)\n");
}

TEST(ViewsTest, QueueNamesTheLateRanks) {
  admin::v1::GetQueueReply reply;
  EXPECT_EQ(QueueText(reply), "nothing in flight\n");
  auto* entry = reply.add_entries();
  entry->set_state("waiting");
  entry->set_since_seconds(2.5);
  entry->set_group_name("tp");
  entry->add_late_ranks(1);
  entry->add_late_ranks(3);
  EXPECT_THAT(QueueText(reply), testing::ContainsRegex("waiting +2.50 s +tp .* 1, 3 *\n"));
}

TopSample Sample(uint64_t launches, double busy, double seconds) {
  TopSample sample;
  sample.at += std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  sample.stats.set_instance_id("one");
  auto* engine = sample.stats.add_engines();
  engine->set_gpu_uuid("EMU-0");
  engine->set_launches(launches);
  engine->set_busy_seconds(busy);
  auto* plan = sample.plans.add_plans();
  plan->mutable_info()->set_plan_id(3);
  plan->mutable_info()->set_op(static_cast<uint32_t>(Op::kAllReduce));
  plan->mutable_stats()->set_launches(launches);
  plan->mutable_stats()->set_bytes_moved(launches << 20);
  return sample;
}

TEST(TopTest, ShowsRatesBetweenTwoSamples) {
  const TopSample before = Sample(1000, 5, 10), now = Sample(1200, 6, 12);
  const std::string text = TopText(before, now);
  EXPECT_THAT(text, testing::ContainsRegex("EMU-0 +50 % +100.0 +0.0 +1200\n"));
  EXPECT_THAT(text, testing::ContainsRegex(" 3 .* 100.0 +1200 .* 100 MiB\n"));
  const auto json = nlohmann::json::parse(TopJson(before, now));
  EXPECT_DOUBLE_EQ(json["engines"][0]["busy"], 0.5);
  EXPECT_DOUBLE_EQ(json["engines"][0]["launches_per_second"], 100);
  EXPECT_DOUBLE_EQ(json["plans"][0]["bytes_per_second"], 100 << 20);
  EXPECT_EQ(json["plans"][0]["op"], "all_reduce");
}

TEST(TopTest, ARestartedDaemonCountsFromZero) {
  TopSample now = Sample(20, 1, 12);
  now.stats.set_instance_id("two");
  EXPECT_THAT(TopText(Sample(1000, 5, 10), now), testing::ContainsRegex("EMU-0 +50 % +10.0 "));
}

TEST(ViewsTest, TheQueueNamesEnginesThatGaveNone) {
  admin::v1::GetQueueReply reply;
  reply.add_silent()->set_reason(
      "the engine of GPU 1 (EMU-1) does not run: its process 7 is stopped (SIGSTOP)");
  EXPECT_THAT(QueueText(reply), HasSubstr("no queue: the engine of GPU 1 (EMU-1) does not run"));
  EXPECT_THAT(QueueText(reply), Not(HasSubstr("nothing in flight")));
}

TEST(ViewsTest, HealthNamesEachCause) {
  admin::v1::GetHealthReply reply;
  reply.set_live(true);
  reply.set_ready(true);
  EXPECT_EQ(HealthText(reply), "live, ready\n");
  reply.set_ready(false);
  reply.add_reasons("the node drains");
  EXPECT_EQ(HealthText(reply), "live, not ready\n  the node drains\n");
}

TEST(ViewsTest, PredictionsNameTheirGpus) {
  admin::v1::ListPlansReply plans;
  auto* info = plans.add_plans()->mutable_info();
  info->set_predicted_us(18.6);
  plans.set_prediction_model("model of H100 and H200 GPUs; the GPUs here are emulated");
  EXPECT_THAT(PlansText(plans),
              HasSubstr("predicted: model of H100 and H200 GPUs; the GPUs here are emulated\n"));
  EXPECT_THAT(PlanText(plans.plans(0), plans.prediction_model()),
              HasSubstr("18.6 us (model of H100 and H200 GPUs; "));
}

TEST(TopologyJsonTest, HasGpusAndMatrices) {
  auto topology = LoadTopology(TANDEM_FIXTURES "/dgx-1v.toml");
  ASSERT_TRUE(topology.ok()) << topology.status().ToString();
  admin::v1::GetTopologyReply reply;
  reply.set_topology_toml(WriteTopology(*topology));
  reply.set_topology_class("hybrid_cube_mesh");
  auto text = TopologyJson(reply);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  const auto json = nlohmann::json::parse(*text);
  EXPECT_EQ(json["topology_class"], "hybrid_cube_mesh");
  ASSERT_EQ(json["gpus"].size(), 8u);
  EXPECT_EQ(json["gpus"][3]["uuid"], topology->gpus[3].uuid);
  EXPECT_EQ(json["links"][0][1], topology->LinkCount(0, 1));
  EXPECT_EQ(json["pcie"][0][0], "X");
  EXPECT_EQ(json["pcie"][0][7], std::string(PcieDistanceName(topology->pcie[0][7])));
  EXPECT_EQ(json["peer_access"][2].size(), 8u);
}

TEST(ViewsTest, StatsHaveWhatIsSentBesideTheLinks) {
  admin::v1::GetStatsReply reply;
  reply.add_engines()->set_gpu_uuid("GPU-a");
  reply.add_engines()->set_gpu_uuid("GPU-b");
  EXPECT_THAT(StatsText(reply), Not(HasSubstr("link")));
  auto* link = reply.add_links();
  link->set_from_gpu_uuid("GPU-b");
  link->set_to_gpu_uuid("GPU-a");
  link->set_gb_per_second(391.4);
  EXPECT_THAT(StatsText(reply), testing::ContainsRegex("links measured +to GPU0 +to GPU1\n"));
  EXPECT_THAT(StatsText(reply), testing::ContainsRegex("from GPU0 +- +-\nfrom GPU1 +391 GB/s +-\n"));
  auto* sent = reply.add_sent();
  sent->set_plan_id(7);
  sent->set_group_name("tp");
  sent->set_summary("all_gather 4 x 4");
  sent->set_rank(1);
  sent->set_gpu_uuid("GPU-b");
  sent->set_bytes(2 << 20);
  sent->set_gb_per_second(97.85);
  EXPECT_THAT(StatsText(reply),
              testing::ContainsRegex("7 +tp +all_gather 4 x 4 +1 +GPU-b +2 MiB +97.8 GB/s +- +-\n"));
  sent->set_gb_per_second(1234.5);
  EXPECT_THAT(StatsText(reply), testing::ContainsRegex(" 123[45] GB/s +- +-\n"));
  sent->set_gb_per_second(97.85);
  sent->set_link_gb_per_second(391.4);
  sent->set_link_fraction(0.25);
  EXPECT_THAT(StatsText(reply), testing::ContainsRegex("97.8 GB/s +391 GB/s +25.0 %\n"));
}

TEST(ExplainTest, ShapesAreParsedOrRefused) {
  EXPECT_EQ(ParseShape("4x5x6").value(), (std::vector<int64_t>{4, 5, 6}));
  for (const char* bad :
       {"", "x", "4x", "4xx5", "-1", "4x5a", "99999999999999999999", "4000000000x4000000000"}) {
    EXPECT_FALSE(ParseShape(bad).ok()) << bad;
  }
}

TEST(ExplainTest, EveryOperationIsPlannedProvedAndExplained) {
  for (const char* op : {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all",
                         "send_receive", "barrier", "empty"}) {
    ExplainOptions options;
    options.op = op;
    options.shape = "64x64";
    auto explanation = Explain(options);
    ASSERT_TRUE(explanation.ok()) << op << ": " << explanation.status().ToString();
    EXPECT_EQ(explanation->plan.programs.size(), 4u) << op;
  }
  for (const char* op : {"all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"}) {
    for (const char* dtype : {"bf16", "f8e4m3"}) {
      ExplainOptions options;
      options.op = op;
      options.shape = "64x32";
      options.b_shape = "32x48";
      options.dtype = dtype;
      auto explanation = Explain(options);
      ASSERT_TRUE(explanation.ok()) << op << ": " << explanation.status().ToString();
      EXPECT_THAT(ExplanationText(*explanation, options), HasSubstr("verified"));
    }
  }
}

TEST(ExplainTest, SizeAndTopologyDecideTheAlgorithm) {
  ExplainOptions options;
  options.shape = "1024";
  EXPECT_EQ(Explain(options)->plan.algorithm, Algorithm::kOneShot);
  options.shape = "1048576";
  EXPECT_EQ(Explain(options)->plan.algorithm, Algorithm::kTwoShot);
  options.shape = "1024";
  options.world = 8;
  options.topology_file = TANDEM_FIXTURES "/dgx-1v.toml";
  auto mesh = Explain(options);
  ASSERT_TRUE(mesh.ok()) << mesh.status().ToString();
  EXPECT_EQ(mesh->plan.algorithm, Algorithm::kHybridCubeMesh);
  auto json = nlohmann::json::parse(ExplanationJson(*mesh, options));
  EXPECT_EQ(json["topology_class"], "hybrid_cube_mesh");
  EXPECT_EQ(json["algorithm"], "hybrid_cube_mesh");
  EXPECT_TRUE(json["verified"]);
  EXPECT_FALSE(json["refused"].empty());
  EXPECT_FALSE(json.contains("programs"));
}

TEST(ExplainTest, PlacementIsExplained) {
  ExplainOptions options;
  options.shape = "1024";
  options.placement = "client";
  auto explanation = Explain(options);
  ASSERT_TRUE(explanation.ok()) << explanation.status().ToString();
  EXPECT_THAT(ExplanationText(*explanation, options), HasSubstr("client: asked for"));
  EXPECT_EQ(nlohmann::json::parse(ExplanationJson(*explanation, options))["placement"], "client");
  options.algorithm = "copy_engine";
  EXPECT_EQ(Explain(options).status().detail().field, "placement");
  options.placement = "auto";
  EXPECT_THAT(ExplanationText(*Explain(options), options), HasSubstr("host backend; the client cannot run"));
  options.placement = "gpu";
  EXPECT_EQ(Explain(options).status().code(), Code::kInvalidArgument);
}

TEST(ExplainTest, DeterminismIsExplained) {
  ExplainOptions options;
  options.shape = "4096x8192";
  options.determinism = "batch";
  const auto explanation = Explain(options);
  ASSERT_TRUE(explanation.ok()) << explanation.status().ToString();
  const std::string text = ExplanationText(*explanation, options);
  EXPECT_THAT(text, testing::ContainsRegex("determinism +batch\n"));
  EXPECT_THAT(text, HasSubstr("rank order, fp32"));
  EXPECT_THAT(text, HasSubstr("closed, sums in one order"));
  EXPECT_THAT(text, HasSubstr("NCCL promises no order of a sum"));
  EXPECT_EQ(nlohmann::json::parse(ExplanationJson(*explanation, options))["determinism"], "batch");
  options.determinism = "always";
  EXPECT_EQ(Explain(options).status().code(), Code::kInvalidArgument);
}

TEST(ExplainTest, RoundingIsExplained) {
  ExplainOptions options;
  options.shape = "16x4096";
  const auto without = Explain(options);
  ASSERT_TRUE(without.ok()) << without.status().ToString();
  EXPECT_THAT(ExplanationText(*without, options), Not(HasSubstr("rounding ")));
  for (const std::string rounding : {"once", "model"}) {
    options.rounding = rounding;
    const auto explanation = Explain(options);
    ASSERT_TRUE(explanation.ok()) << explanation.status().ToString();
    EXPECT_THAT(ExplanationText(*explanation, options), HasSubstr("rounding      " + rounding + "\n"));
    EXPECT_EQ(nlohmann::json::parse(ExplanationJson(*explanation, options))["rounding"], rounding);
  }
  options.rounding = "never";
  EXPECT_EQ(Explain(options).status().code(), Code::kInvalidArgument);
  options.rounding = "once";
  options.op = "barrier";
  EXPECT_EQ(Explain(options).status().code(), Code::kInvalidArgument);
}

TEST(ExplainTest, AFamilysRowsAreExplained) {
  ExplainOptions options;
  options.shape = "8x1024";
  options.max_rows = 4096;
  const auto family = Explain(options);
  ASSERT_TRUE(family.ok()) << family.status().ToString();
  const std::string text = ExplanationText(*family, options);
  EXPECT_THAT(text, HasSubstr("all_reduce bf16[4096, 1024]")) << "the rest is of the bound";
  EXPECT_THAT(text, testing::ContainsRegex("rows +algorithm +predicted at the end +why\n +0 "));
  EXPECT_THAT(text, testing::ContainsRegex(" - 4096  two_shot "));
  const auto json = nlohmann::json::parse(ExplanationJson(*family, options));
  EXPECT_EQ(json["rows"]["max_rows"], 4096);
  EXPECT_EQ(json["rows"]["unit"], 1);
  const auto& ranges = json["rows"]["ranges"];
  ASSERT_EQ(ranges.size(), family->plan.rows.ranges.size());
  EXPECT_EQ(ranges.front()["last"], 0);
  EXPECT_EQ(ranges.back()["last"], 4096);
  EXPECT_EQ(ranges.back()["algorithm"], json["algorithm"]);
  EXPECT_EQ(ranges.back()["predicted_us"], json["predicted_us"]);
  for (const auto& [op, rows, field] :
       {std::tuple{"barrier", int64_t{8}, "op"}, std::tuple{"all_to_all", int64_t{6}, "max_rows"},
        std::tuple{"all_reduce", int64_t{-1}, "max_rows"}}) {
    options.op = op;
    options.max_rows = rows;
    EXPECT_EQ(Explain(options).status().detail().field, field) << op;
  }
  options = {};
  options.shape = "8x1024";
  EXPECT_FALSE(nlohmann::json::parse(ExplanationJson(*Explain(options), options)).contains("rows"));
}

TEST(JsonTest, IntegersAreNumbersWhereADoubleHoldsThem) {
  admin::v1::ListPoolsReply reply;
  admin::v1::Pool* pool = reply.add_pools();
  pool->set_gpu_uuid("12345");  // a string that looks like a number stays one
  pool->set_memory_bytes(uint64_t{1} << 53);
  pool->set_used_bytes((uint64_t{1} << 53) + 1);
  pool->set_registered_bytes(~uint64_t{0});
  pool->add_segments()->set_bytes(uint64_t{2} << 20);
  auto text = MessageJson(reply);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  auto json = nlohmann::json::parse(*text)["pools"][0];
  EXPECT_EQ(json["gpu_uuid"], "12345");
  EXPECT_EQ(json["memory_bytes"], uint64_t{1} << 53);
  EXPECT_EQ(json["used_bytes"], "9007199254740993");
  EXPECT_EQ(json["registered_bytes"], "18446744073709551615");
  EXPECT_EQ(json["segments"][0]["bytes"], 2097152);
  EXPECT_EQ(json["segments"][0]["group_id"], 0) << "fields without a value are present";
  admin::v1::ListGroupsReply groups;
  groups.add_groups()->add_members()->set_session_id(7);
  json = nlohmann::json::parse(*MessageJson(groups));
  EXPECT_EQ(json["groups"][0]["members"][0]["session_id"], 7);
}

TEST(JsonTest, OperationsAndAlgorithmsHaveTheirNames) {
  admin::v1::ListPlansReply reply;
  auto* info = reply.add_plans()->mutable_info();
  info->set_op(static_cast<uint32_t>(Op::kAllGatherMatmul));
  info->set_algorithm(static_cast<uint32_t>(Algorithm::kRing));
  info->add_refused()->set_algorithm(static_cast<uint32_t>(Algorithm::kPipeline));
  info->add_operands()->set_role(static_cast<uint32_t>(Role::kGatheredA));
  const auto json = nlohmann::json::parse(*MessageJson(reply))["plans"][0]["info"];
  EXPECT_EQ(json["op"], "all_gather_matmul");
  EXPECT_EQ(json["algorithm"], "ring");
  EXPECT_EQ(json["refused"][0]["algorithm"], "pipeline");
  EXPECT_EQ(json["operands"][0]["role"], "gathered_a");
}

TEST(ExplainTest, NoReasonContradictsItsPredictions) {
  for (int world : {2, 4, 8}) {
    for (int64_t elements = 64; elements <= int64_t{1} << 24; elements *= 2) {
      ExplainOptions options;
      options.shape = std::to_string(elements);
      options.world = world;
      const auto explanation = Explain(options);
      ASSERT_TRUE(explanation.ok()) << explanation.status().ToString();
      for (const auto& refused : explanation->plan.refused) {
        if (refused.reason.find("is preferred: predicted") == std::string::npos) continue;
        EXPECT_GE(refused.predicted_us, explanation->plan.predicted_us)
            << options.shape << ": " << refused.reason;
      }
      EXPECT_THAT(ExplanationText(*explanation, options),
                  HasSubstr("(model of H100 and H200 GPUs; the GPUs here are emulated)"));
    }
  }
}

}  // namespace
}  // namespace tandem::ctl
