// File: autotune.h
//
// Times a request's algorithms while the request is prepared (OpRequest::autotune), on scratch memory. All
// ranks of the group do the same in the same order. tandemd names the algorithms, and predictions, which are
// the same on all ranks, give the number of launches. tandemd chooses by the slowest rank's times
// (docs/tuning.md).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/device/rank_device.h"
#include "client/device/scratch_operands.h"
#include "client/lib/base/control_api.h"
#include "tandem/client.h"

namespace tandem::client {

// One rank's measurement of one request. Used by one thread, whose current CUDA context changes.
class Autotune {
 public:
  using Clock = std::chrono::steady_clock;
  // Prepares a request of the group's under a key of the measurement's own.
  using PrepareOne = std::function<Result<std::shared_ptr<Plan>>(
      const std::string& key, const OpRequest& request, Milliseconds deadline)>;

  // `group` must outlive the object. `end`: of everything.
  Autotune(Group& group, OpRequest request, Clock::time_point end)
      : group_(group), request_(std::move(request)), end_(end) {}
  // Waits for launches that use the scratch memory, at most some seconds.
  ~Autotune();
  Autotune(const Autotune&) = delete;
  Autotune& operator=(const Autotune&) = delete;

  // Makes this rank's own memory; no other rank takes part. An error: this rank cannot measure.
  Status Ready(const std::string& backend, const ScratchOperands::Allocate& allocate);
  // Times `first`, a plan by measure[0], and plans by the others. An algorithm that tandemd refuses is left
  // out. Errors end the measurement on all ranks.
  Result<std::vector<MeasuredTime>> Measure(const std::string& key, std::shared_ptr<Plan> first,
                                            const std::vector<Algorithm>& measure, PlanPlacement placement,
                                            const PrepareOne& prepare);

 private:
  struct Arm {
    Algorithm algorithm = Algorithm::kAuto;
    std::shared_ptr<Plan> plan;
    std::vector<double> rounds;  // microseconds of a launch
  };

  Milliseconds Left() const;
  // Microseconds of one of `launches` launches: see PlanTimer.
  Result<double> Run(Plan& plan, int launches);

  Group& group_;
  const OpRequest request_;
  const Clock::time_point end_;
  std::shared_ptr<RankDevice> device_;
  std::unique_ptr<RankStream> stream_;
  std::unique_ptr<RankEvent> start_, stop_;
  std::unique_ptr<ScratchOperands> scratch_;  // last: it uses the stream
};

}  // namespace tandem::client
