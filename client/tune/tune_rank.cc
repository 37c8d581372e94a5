#include "client/tune/tune_rank.h"

#include <utility>

#include "client/device/plan_timer.h"

namespace tandem::tune {

Status TuneRank::Start(const OpRequest& request, const std::string& job_key) {
  if (group_ != nullptr) return FailedPrecondition("the rank is in a group already");
  request_ = request;
  if (client_ == nullptr) {
    ConnectOptions connect;
    connect.runtime_dir = options_.runtime_dir;
    connect.name = "tandemctl tune";
    connect.deadline = options_.deadline;
    TANDEM_ASSIGN_OR_RETURN(client_, Client::Connect(connect));
  }
  JoinOptions join;
  join.job_key = job_key;
  join.name = "tune";
  join.world_size = options_.world;
  join.rank = options_.rank;
  join.gpu_uuid = options_.gpu_uuid;
  join.deadline = options_.deadline;
  join.launch_deadline = options_.deadline;
  TANDEM_ASSIGN_OR_RETURN(group_, client_->JoinGroup(join));
  if (device_ == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(device_, RankDevice::Create(client_->backend(), group_->gpu_uuid()));
  }
  TANDEM_ASSIGN_OR_RETURN(stream_, device_->MakeStream());
  TANDEM_ASSIGN_OR_RETURN(start_, device_->MakeEvent());
  TANDEM_ASSIGN_OR_RETURN(end_, device_->MakeEvent());
  const auto allocate = [&](size_t bytes) { return client_->AllocateRegistered(bytes, group_->gpu_uuid()); };
  TANDEM_ASSIGN_OR_RETURN(
      scratch_, ScratchOperands::Make(request_, *device_, *stream_, allocate,
                                      static_cast<uint32_t>(options_.rank * 16), options_.deadline));
  return scratch_->AddSymmetric(*group_, options_.deadline);
}

Status TuneRank::Prepare(const std::string& key, Algorithm algorithm, int steps, int lanes,
                         nlohmann::json* reply) {
  OpRequest request = request_;
  request.algorithm = algorithm;
  request.steps = steps;
  request.lanes = lanes;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Plan> plan, group_->Prepare(key, request, options_.deadline));
  (*reply)["summary"] = plan->info().summary;
  (*reply)["predicted_us"] = plan->info().predicted_us;
  (*reply)["steps"] = plan->info().steps;
  (*reply)["lanes"] = plan->info().lanes;
  plans_[key] = std::move(plan);
  return Run(key, 1).status();
}

Result<double> TuneRank::Run(const std::string& key, int launches) {
  const auto found = plans_.find(key);
  if (found == plans_.end()) return NotFound("no plan " + key);
  Plan& plan = *found->second;
  const PlanTimer timer{*stream_, *start_, *end_, options_.deadline};
  return timer.Time(plan, scratch_->bindings(), launches);
}

Status TuneRank::Release(const std::string& key) {
  const auto found = plans_.find(key);
  if (found == plans_.end()) return Status::Ok();
  Status released = found->second->Release();
  plans_.erase(found);
  return released;
}

Status TuneRank::End() {
  if (group_ == nullptr) return FailedPrecondition("the rank is in no group");
  plans_.clear();
  start_.reset();
  end_.reset();
  scratch_.reset();
  stream_.reset();
  Status left = group_->Leave(options_.deadline);
  group_.reset();
  return left;
}

}  // namespace tandem::tune
