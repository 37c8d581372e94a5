// Planning and verifying for eight ranks. It prints the median over the operations and algorithms of a
// training, at shapes of small and large Llama models. Rings of many steps are among them. It also prints the
// median of the slowest request.

#include <algorithm>
#include <cstdio>
#include <vector>

#include "bench/host/measure.h"
#include "daemon/planner/planner.h"
#include "daemon/topology/topology_file.h"
#include "program/verifier/verifier.h"

namespace {

using namespace tandem;

Operand Make(Role role, std::vector<int64_t> shape) {
  return {role, {DType::kBf16, std::move(shape), {}}, false, -1};
}

constexpr int64_t kWorld = 8;

// `rows` are tokens, `inner` the hidden size, `columns` one rank's part of the projection.
void AddMatmuls(int64_t rows, int64_t inner, int64_t columns, int ring_steps,
                std::vector<OpRequest>* requests) {
  for (Algorithm algorithm : {Algorithm::kUnfused, Algorithm::kPipeline, Algorithm::kRing}) {
    OpRequest gather;
    gather.op = Op::kAllGatherMatmul;
    gather.algorithm = algorithm;
    if (algorithm == Algorithm::kRing) gather.steps = ring_steps;
    gather.operands = {Make(Role::kA, {rows / kWorld, inner}), Make(Role::kB, {inner, columns}),
                       Make(Role::kC, {rows, columns})};
    requests->push_back(gather);
    OpRequest scatter;
    scatter.op = Op::kMatmulReduceScatter;
    scatter.algorithm = algorithm;
    if (algorithm == Algorithm::kRing) scatter.steps = ring_steps;
    scatter.operands = {Make(Role::kA, {rows, columns}), Make(Role::kB, {columns, inner}),
                        Make(Role::kC, {rows / kWorld, inner})};
    requests->push_back(scatter);
  }
}

std::vector<OpRequest> Requests() {
  std::vector<OpRequest> requests;
  AddMatmuls(4096, 8192, 3584, 8, &requests);  // Llama 70B
  AddMatmuls(16384, 8192, 3584, 32, &requests);
  AddMatmuls(8192, 16384, 6656, 32, &requests);  // Llama 405B
  AddMatmuls(32768, 16384, 6656, 64, &requests);
  for (Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kNccl}) {
    OpRequest reduce;
    reduce.op = Op::kAllReduce;
    reduce.algorithm = algorithm;
    reduce.operands = {Make(Role::kInput, {65536}), Make(Role::kOutput, {65536})};
    requests.push_back(reduce);
  }
  return requests;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

}  // namespace

int main() {
  plan::GroupContext group;
  group.topology = EmulatedTopology(8);
  std::vector<double> planning, verifying, worst_planning{0}, worst_verifying{0};
  for (const OpRequest& request : Requests()) {
    std::vector<OpRequest> ranks(8, request);
    Result<plan::VerifyContext> context = plan::ContextOf(ranks);
    if (!context.ok()) return 1;
    std::vector<double> own_planning, own_verifying;
    for (int i = 0; i < 40; ++i) {
      double start = bench::NowUs();
      Result<plan::OperationPlan> plan = plan::MakePlan(ranks, group);
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
      own_planning.push_back((planned - start) / 1e3);
      own_verifying.push_back((end - planned) / 1e3);
    }
    planning.insert(planning.end(), own_planning.begin(), own_planning.end());
    verifying.insert(verifying.end(), own_verifying.begin(), own_verifying.end());
    if (Median(own_planning) > Median(worst_planning)) worst_planning = own_planning;
    if (Median(own_verifying) > Median(worst_verifying)) worst_verifying = own_verifying;
  }
  bench::Report("plan_w8_p50_ms", planning, "ms");
  bench::Report("verify_w8_p50_ms", verifying, "ms");
  bench::Report("plan_w8_dearest_p50_ms", worst_planning, "ms");
  bench::Report("verify_w8_dearest_p50_ms", worst_verifying, "ms");
  return 0;
}
