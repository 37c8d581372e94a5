#include "client/tune/tune_rank.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tandem::tune {
namespace {

// Operands begin at multiples of this many bytes, the alignment that kernels and copies are fast at.
constexpr size_t kAlignment = 256;
// The unit of the CUDA backend's allocations.
constexpr size_t kGranule = size_t{2} << 20;
// The numbers repeat after so many elements: a prime, so that no two rows of a matrix are alike.
constexpr size_t kPattern = 1'048'573;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

bool IsRead(Role role) { return role != Role::kOutput && role != Role::kC && role != Role::kGatheredA; }

// A uniform number in [0, 2^24): Numerical Recipes' linear congruential generator.
uint32_t Next(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

// About normal, of variance 1, as activations and weights are; integers in [0, 16); scales are a half, so
// that products of fp8 stay in range.
void FillOperand(const Operand& operand, std::byte* at, size_t bytes, uint32_t seed) {
  const DType type = operand.spec.dtype;
  const size_t element = DTypeBytes(type), pattern = std::min(bytes / element, kPattern);
  const bool scale =
      operand.role == Role::kScaleA || operand.role == Role::kScaleB || operand.role == Role::kResultScale;
  uint32_t state = seed * 2654435761u + 1;
  for (size_t i = 0; i < pattern; ++i) {
    float number = 0.5f;
    if (!scale && IsFloating(type)) {
      // The sum of twelve uniform ones in [0, 1) has variance 1 (Irwin–Hall).
      uint32_t sum = 0;
      for (int uniform = 0; uniform < 12; ++uniform) sum += Next(&state);
      number = static_cast<float>(static_cast<double>(sum) / (1 << 24) - 6.0);
    } else if (!scale) {
      number = static_cast<float>(Next(&state) >> 20);
    }
    StoreFromFloat(at, type, i, number);
  }
  for (size_t done = pattern * element; done < bytes;) {
    const size_t piece = std::min(pattern * element, bytes - done);
    std::memcpy(at + done, at, piece);
    done += piece;
  }
}

}  // namespace

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
  return Bind();
}

Status TuneRank::Bind() {
  size_t own = 0, symmetric = 0;
  for (int slot = 0; slot < static_cast<int>(request_.operands.size()); ++slot) {
    const Operand& operand = request_.operands[static_cast<size_t>(slot)];
    if (operand.alias_of >= 0) {  // another slot's place, which is an earlier one's
      if (static_cast<size_t>(operand.alias_of) >= bindings_.size())
        return InvalidArgument("an alias of a later operand");
      bindings_.push_back(bindings_[static_cast<size_t>(operand.alias_of)]);
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(const int64_t bytes, BoundBytes(request_, slot));
    size_t& end = operand.symmetric ? symmetric : own;
    bindings_.push_back({nullptr, end});
    end = RoundUp(end + static_cast<size_t>(bytes), kAlignment);
  }
  if (own > 0) {
    TANDEM_ASSIGN_OR_RETURN(own_, client_->AllocateRegistered(RoundUp(own, kGranule), group_->gpu_uuid()));
    TANDEM_RETURN_IF_ERROR(Fill(*own_, false));
  }
  if (symmetric > 0) {
    TANDEM_ASSIGN_OR_RETURN(
        symmetric_, group_->Allocate({static_cast<int64_t>(symmetric)}, DType::kU8, {}, options_.deadline));
    TANDEM_RETURN_IF_ERROR(Fill(*symmetric_, true));
  }
  for (size_t slot = 0; slot < bindings_.size(); ++slot) {
    bindings_[slot].memory = request_.operands[slot].symmetric ? symmetric_.get() : own_.get();
  }
  return Status::Ok();
}

Status TuneRank::Fill(const Memory& memory, bool symmetric) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<RankMirror> mirror, device_->MakeMirror(memory));
  for (size_t slot = 0; slot < bindings_.size(); ++slot) {
    const Operand& operand = request_.operands[slot];
    if (operand.symmetric != symmetric || operand.alias_of >= 0 || !IsRead(operand.role)) continue;
    TANDEM_ASSIGN_OR_RETURN(const int64_t bytes, BoundBytes(request_, static_cast<int>(slot)));
    const auto size = static_cast<size_t>(bytes);
    if (size == 0) continue;
    const auto seed = static_cast<uint32_t>(options_.rank * 16) + static_cast<uint32_t>(slot);
    FillOperand(operand, mirror->data() + bindings_[slot].offset, size, seed);
    TANDEM_RETURN_IF_ERROR(mirror->ToDevice(*stream_, bindings_[slot].offset, size));
  }
  return stream_->Synchronize(options_.deadline);
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
  TANDEM_RETURN_IF_ERROR(plan.Launch(stream_->ref(), bindings_));
  TANDEM_RETURN_IF_ERROR(stream_->Record(*start_));
  for (int i = 0; i < launches; ++i) TANDEM_RETURN_IF_ERROR(plan.Launch(stream_->ref(), bindings_));
  TANDEM_RETURN_IF_ERROR(stream_->Record(*end_));
  TANDEM_RETURN_IF_ERROR(stream_->Synchronize(options_.deadline));
  TANDEM_RETURN_IF_ERROR(plan.Wait(options_.deadline));
  TANDEM_ASSIGN_OR_RETURN(const double us, end_->MicrosecondsSince(*start_));
  return us / launches;
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
  stream_.reset();
  bindings_.clear();
  own_.reset();
  symmetric_.reset();
  Status left = group_->Leave(options_.deadline);
  group_.reset();
  return left;
}

}  // namespace tandem::tune
