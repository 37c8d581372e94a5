// Planning and verifying for eight ranks: the median over the operations and algorithms that a training uses.

#include <cstdio>
#include <vector>

#include "bench/host/measure.h"
#include "daemon/planner/planner.h"
#include "daemon/planner/verifier.h"
#include "daemon/topology/topology_file.h"

namespace {

using namespace tandem;

Operand Make(Role role, std::vector<int64_t> shape) { return {role, {DType::kBf16, std::move(shape), {}}, false, -1}; }

std::vector<OpRequest> Requests() {
  constexpr int64_t kWorld = 8, kRows = 4096, kInner = 8192, kColumns = 3584;
  std::vector<OpRequest> requests;
  for (Algorithm algorithm : {Algorithm::kUnfused, Algorithm::kPipeline, Algorithm::kRing}) {
    OpRequest gather;
    gather.op = Op::kAllGatherMatmul;
    gather.algorithm = algorithm;
    gather.operands = {Make(Role::kA, {kRows / kWorld, kInner}), Make(Role::kB, {kInner, kColumns}),
                       Make(Role::kC, {kRows, kColumns})};
    requests.push_back(gather);
    OpRequest scatter;
    scatter.op = Op::kMatmulReduceScatter;
    scatter.algorithm = algorithm;
    scatter.operands = {Make(Role::kA, {kRows, kColumns}), Make(Role::kB, {kColumns, kInner}),
                        Make(Role::kC, {kRows / kWorld, kInner})};
    requests.push_back(scatter);
  }
  for (Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kNccl}) {
    OpRequest reduce;
    reduce.op = Op::kAllReduce;
    reduce.algorithm = algorithm;
    reduce.operands = {Make(Role::kInput, {65536}), Make(Role::kOutput, {65536})};
    requests.push_back(reduce);
  }
  return requests;
}

}  // namespace

int main() {
  plan::GroupContext group;
  group.topology = EmulatedTopology(8);
  std::vector<double> planning, verifying;
  for (const OpRequest& request : Requests()) {
    std::vector<OpRequest> ranks(8, request);
    Result<plan::VerifyContext> context = plan::ContextOf(ranks);
    if (!context.ok()) return 1;
    for (int i = 0; i < 40; ++i) {
      double start = bench::NowUs();
      Result<plan::Plan> plan = plan::MakePlan(ranks, group);
      double planned = bench::NowUs();
      if (!plan.ok()) {
        std::fprintf(stderr, "%s\n", plan.status().ToString().c_str());
        return 1;
      }
      Status verified = plan::VerifyPrograms(plan->programs, *context);
      double end = bench::NowUs();
      if (!verified.ok()) {
        std::fprintf(stderr, "%s: %s\n", plan->summary.c_str(), verified.ToString().c_str());
        return 1;
      }
      planning.push_back((planned - start) / 1e3);
      verifying.push_back((end - planned) / 1e3);
    }
  }
  bench::Report("plan_w8_p50_ms", planning, "ms");
  bench::Report("verify_w8_p50_ms", verifying, "ms");
  return 0;
}
