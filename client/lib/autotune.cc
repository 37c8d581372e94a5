#include "client/lib/autotune.h"

#include <algorithm>
#include <utility>

#include "client/device/plan_timer.h"
#include "common/deadline.h"
#include "ipc/channel_layout.h"

namespace tandem::client {
namespace {

constexpr int kRounds = 3;
// Time of one algorithm in one round: with at most four algorithms a plan's measurement takes some 50 ms.
constexpr double kRoundUs = 3000;
constexpr int kMaxLaunches = 100;
// For launches of a measurement that has failed.
constexpr Milliseconds kMinWait(1000), kMaxWait(10000);

int LaunchesOf(const Plan& plan) {
  const double us = std::max(plan.info().predicted_us, 1.0);
  return std::clamp(static_cast<int>(kRoundUs / us), 1, kMaxLaunches);
}

// A refusal is the same on all ranks, and another algorithm may still run.
bool IsRefusal(const Status& status) {
  return status.code() == Code::kFailedPrecondition || status.code() == Code::kInvalidArgument ||
         status.code() == Code::kResourceExhausted || status.code() == Code::kUnimplemented;
}

}  // namespace

Autotune::~Autotune() {
  if (scratch_ == nullptr) return;
  const Status ended = stream_->Synchronize(std::clamp(Left(), kMinWait, kMaxWait));
  // Launches that have not ended may still use the memory, which then stays until the process ends.
  if (ended.code() == Code::kDeadlineExceeded) (void)scratch_.release();
}

Milliseconds Autotune::Left() const { return TimeLeft(end_); }

Status Autotune::Ready(const std::string& backend, const ScratchOperands::Allocate& allocate) {
  TANDEM_ASSIGN_OR_RETURN(device_, RankDevice::Create(backend, group_.gpu_uuid()));
  TANDEM_ASSIGN_OR_RETURN(stream_, device_->MakeStream());
  TANDEM_ASSIGN_OR_RETURN(start_, device_->MakeEvent());
  TANDEM_ASSIGN_OR_RETURN(stop_, device_->MakeEvent());
  const auto seed = static_cast<uint32_t>(group_.rank() * kMaxBindings);
  TANDEM_ASSIGN_OR_RETURN(scratch_,
                          ScratchOperands::Make(request_, *device_, *stream_, allocate, seed, Left()));
  return Status::Ok();
}

Result<double> Autotune::Run(Plan& plan, int launches) {
  const PlanTimer timer{*stream_, *start_, *stop_, Left()};
  return timer.Time(plan, scratch_->bindings(), launches);
}

Result<std::vector<MeasuredTime>> Autotune::Measure(const std::string& key, std::shared_ptr<Plan> first,
                                                    const std::vector<Algorithm>& measure,
                                                    PlanPlacement placement, const PrepareOne& prepare) {
  TANDEM_RETURN_IF_ERROR(scratch_->AddSymmetric(group_, Left()));
  std::vector<Arm> arms = {{measure[0], std::move(first), {}}};
  OpRequest request = request_;
  request.placement = placement;
  request.on_unfused = OnUnfused::kAllow;  // it is measured, not used
  for (size_t i = 1; i < measure.size(); ++i) {
    request.algorithm = measure[i];
    Result<std::shared_ptr<Plan>> plan =
        prepare(key + " " + std::string(AlgorithmName(measure[i])), request, Left());
    if (plan.ok()) {
      arms.push_back({measure[i], *std::move(plan), {}});
    } else if (!IsRefusal(plan.status())) {
      return plan.status();
    }
  }
  for (Arm& arm : arms) TANDEM_RETURN_IF_ERROR(Run(*arm.plan, 1).status());
  for (int round = 0; round < kRounds; ++round) {
    for (Arm& arm : arms) {
      TANDEM_ASSIGN_OR_RETURN(const double us, Run(*arm.plan, LaunchesOf(*arm.plan)));
      arm.rounds.push_back(us);
    }
  }
  std::vector<MeasuredTime> times;
  for (Arm& arm : arms) {
    TANDEM_RETURN_IF_ERROR(arm.plan->Release());
    std::sort(arm.rounds.begin(), arm.rounds.end());
    times.push_back({arm.algorithm, kRounds, arm.rounds[kRounds / 2], arm.rounds.front(), arm.rounds.back()});
  }
  return times;
}

}  // namespace tandem::client
