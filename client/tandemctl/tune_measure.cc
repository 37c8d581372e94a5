#include "client/tandemctl/tune_measure.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>

#include "client/ranks/job_key.h"
#include "client/ranks/request_json.h"

namespace tandem::ctl {
namespace {

using nlohmann::json;

constexpr int kTrialLaunches = 3;  // by which a round's number of launches is chosen

struct Arm {
  TuneCandidate candidate;
  std::string key;
  int launches = 1;
  std::vector<double> rounds;
  admin::v1::TuningCandidate result;
};

class Measurement {
 public:
  Measurement(TuneRanks& ranks, const OpRequest& request, const TuneOptions& options)
      : ranks_(ranks), request_(request), options_(options) {}

  Result<std::vector<admin::v1::TuningCandidate>> Run(const std::vector<TuneCandidate>& candidates,
                                                      const std::function<Status()>& idle) {
    TANDEM_ASSIGN_OR_RETURN(const std::string job_key, RandomJobKey());
    TANDEM_RETURN_IF_ERROR(
        ranks_.MustAsk({{"do", "start"}, {"job_key", job_key}, {"request", RequestToJson(request_)}})
            .status());
    for (size_t i = 0; i < candidates.size(); ++i) {
      TANDEM_ASSIGN_OR_RETURN(Arm arm, Prepare(candidates[i], "c" + std::to_string(i)));
      arms_.push_back(std::move(arm));
    }
    TANDEM_RETURN_IF_ERROR(MeasureAll(idle));
    TANDEM_RETURN_IF_ERROR(ranks_.MustAsk({{"do", "end"}}).status());
    std::vector<admin::v1::TuningCandidate> results;
    for (Arm& arm : arms_) results.push_back(std::move(arm.result));
    return results;
  }

 private:
  // A refused candidate is a result. A failure that ends the ranks' group ends the measurement.
  static bool EndsAll(const Status& status) {
    return status.code() == Code::kUnavailable || status.code() == Code::kAborted ||
           status.code() == Code::kUnauthenticated;
  }

  Result<Arm> Prepare(const TuneCandidate& candidate, const std::string& key) {
    Arm arm{.candidate = candidate, .key = key, .launches = options_.launches, .rounds = {}, .result = {}};
    arm.result.set_algorithm(static_cast<uint32_t>(candidate.algorithm));
    arm.result.set_steps(candidate.steps);
    arm.result.set_lanes(candidate.lanes);
    const std::string name = candidate.Name();
    TANDEM_ASSIGN_OR_RETURN(const std::vector<json> answers,
                            ranks_.Ask({{"do", "prepare"},
                                        {"key", key},
                                        {"algorithm", AlgorithmName(candidate.algorithm)},
                                        {"steps", candidate.steps},
                                        {"lanes", candidate.lanes}}));
    if (const Status refused = RefusalIn(answers); !refused.ok()) {
      if (EndsAll(refused)) return refused.WithContext(name);
      arm.result.set_refused(ShortRefusal(refused.message(), request_.op));
      std::fprintf(stderr, "%s: refused: %s\n", name.c_str(), arm.result.refused().c_str());
      TANDEM_RETURN_IF_ERROR(ranks_.MustAsk({{"do", "release"}, {"key", key}}).status());
      return arm;
    }
    TANDEM_ASSIGN_OR_RETURN(const double us, Time(arm, kTrialLaunches));
    if (arm.launches <= 0) arm.launches = BatchOf(us);
    std::fprintf(stderr, "%s: prepared, about %.0f us, %d launches a round\n", name.c_str(), us,
                 arm.launches);
    return arm;
  }

  // Microseconds of a launch, on the slowest rank.
  Result<double> Time(const Arm& arm, int launches) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<json> answers,
                            ranks_.MustAsk({{"do", "run"}, {"key", arm.key}, {"launches", launches}}));
    double slowest = 0;
    for (const json& answer : answers) slowest = std::max(slowest, answer.value("us", 0.0));
    if (slowest <= 0) return Internal("the ranks have measured no time");
    return slowest;
  }

  Status MeasureAll(const std::function<Status()>& idle) {
    std::vector<size_t> order;
    for (size_t i = 0; i < arms_.size(); ++i) {
      if (arms_[i].result.refused().empty()) order.push_back(i);
    }
    if (order.empty()) return FailedPrecondition("no candidate can run");
    std::mt19937 random(std::random_device{}());
    for (int round = 1; round <= options_.rounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (size_t index : order) {
        TANDEM_ASSIGN_OR_RETURN(const double us, Time(arms_[index], arms_[index].launches));
        arms_[index].rounds.push_back(us);
      }
      TANDEM_RETURN_IF_ERROR(idle());
      std::fprintf(stderr, "round %d of %d\n", round, options_.rounds);
    }
    for (size_t index : order) Summarise(arms_[index].rounds, &arms_[index].result);
    return Status::Ok();
  }

  TuneRanks& ranks_;
  const OpRequest& request_;
  const TuneOptions& options_;
  std::vector<Arm> arms_;
};

}  // namespace

Result<std::vector<admin::v1::TuningCandidate>> MeasureCase(TuneRanks& ranks, const OpRequest& request,
                                                            const std::vector<TuneCandidate>& candidates,
                                                            const TuneOptions& options,
                                                            const std::function<Status()>& idle) {
  return Measurement(ranks, request, options).Run(candidates, idle);
}

}  // namespace tandem::ctl
