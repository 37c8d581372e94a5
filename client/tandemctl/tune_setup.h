// File: tune_setup.h
//
// The requests and candidates of `tandemctl tune`, and the figures of the rounds. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "client/tandemctl/explain.h"
#include "tandem/admin/v1/admin.pb.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::ctl {

// One thing to measure.
struct TuneCase {
  ExplainOptions what;     // op, dtype, dim, symmetric, exact; the rest is not looked at
  std::string shape;       // MxNxK of the whole product; for a collective, one rank's input
  std::string scales;      // fp8: "tensor_wise" (the default), "row_wise", "block_wise"
  std::string candidates;  // "ring:8x2,pipeline:x3,unfused"; empty: DefaultCandidates
  // "all_gather_matmul 8192x3584x8192 f8e4m3 row_wise".
  std::string Name() const;
};

// Where and how all cases are measured.
struct TuneOptions {
  int world = 4;
  std::vector<std::string> gpus;  // indexes or UUIDs, in rank order; empty: the first ones
  int rounds = 15;
  int launches = 0;                  // of a round; 0: as many as take about kBatchUs
  bool force = false;                // also beside other groups on these GPUs
  bool dry_run = false;              // the table stays as it is
  double deadline_seconds = 60;      // of each step of the ranks
  double time_limit_seconds = 0;     // no case begins after that; 0: none
  std::string placement = "engine";  // "engine" or "client": where the launches run
  bool wanted = false;               // not cases, but what plans were made for without a time, on their GPUs
};

// The request that every rank of `world` makes. M, N and K belong to the whole product. A rank's A is M/W x K
// for a gather, else M x K; B is K x N.
Result<OpRequest> TuneRequest(const TuneCase& one, int world);

struct TuneCandidate {
  Algorithm algorithm = Algorithm::kAuto;
  int steps = 0, lanes = 0;  // 0: the planner's
  // "ring 8x2": S and lanes where they are given.
  std::string Name() const;
};
// The operation's algorithms except those that are measured on request only. A pipeline has several lanes.
std::vector<TuneCandidate> DefaultCandidates(Op op);
// "algorithm[:[S][xLANES]]", separated by commas. INVALID_ARGUMENT names what is wrong; duplicates are
// dropped.
Result<std::vector<TuneCandidate>> ParseCandidates(const std::string& text, Op op);

// Median, 10th and 90th percentile (nearest rank) of the rounds into `to`; at least one round.
void Summarise(std::vector<double> rounds, admin::v1::TuningCandidate* to);
// A daemon's refusal in a few words that an entry can hold: printable, within its bound, without the other
// algorithms' reasons.
std::string ShortRefusal(const std::string& message, Op op);
// Launches of a round of a plan that takes so long; a launch that is longer than a round is made once.
int BatchOf(double us);

}  // namespace tandem::ctl
