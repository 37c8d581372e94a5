#include "client/lib/client_launch/cuda/cuda_client_work.h"

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "client/lib/cuda/context_scope.h"
#include "kernels/cuda/matmul/matmul_trial.h"

namespace tandem::client {
namespace {

// Sets of operands that parameters are kept for: some kilobytes each.
constexpr size_t kMaxCachedArguments = 64;

// A family tries some hundred numbers of rows. The first trials load kernels, which takes a part of the time.
cuda::TrialEffort Effort(Trials trials) {
  if (trials == Trials::kWhole) return {};
  return {.budget_ms = cuda::kTrialBudgetMs / 2,
          .rounds = 2,
          .far_behind = 1.1f,
          .unaligned = trials == Trials::kBrief};
}

// A piece of bound work as a step of the launch.
struct StepMaker {
  const cuda::ClientHalves& halves;
  const cuda::ClientFusedPlaces* fused;  // null: the kernel is no fused matmul

  Result<CudaClientStep> operator()(const CollectiveArgs* kernel) const {
    TANDEM_ASSIGN_OR_RETURN(const cuda::ClientKernelLaunch launch,
                            cuda::MakeClientLaunch(*kernel, halves, fused));
    return CudaClientStep(launch);
  }
  Result<CudaClientStep> operator()(const CopyArgs* copy) const {
    CopyArgs by_kernel = *copy;
    by_kernel.copy_engine = false;  // whose calls a capture may not record
    return CudaClientStep(std::move(by_kernel));
  }
  template <class Args>
  Result<CudaClientStep> operator()(const Args* args) const {
    return CudaClientStep(*args);
  }
};

Status LoadKernels(std::span<const CudaClientStep> steps) {
  for (const CudaClientStep& step : steps) {
    if (const auto* kernel = std::get_if<cuda::ClientKernelLaunch>(&step))
      TANDEM_RETURN_IF_ERROR(cuda::Load(*kernel));
  }
  return Status::Ok();
}

// A kernel and the norm behind it as one kernel, where there is one for these addresses.
void MergeNorm(std::vector<CudaClientStep>* steps) {
  for (size_t i = 0; i + 1 < steps->size(); ++i) {
    const auto* kernel = std::get_if<cuda::ClientKernelLaunch>(&(*steps)[i]);
    const auto* norm = std::get_if<NormArgs>(&(*steps)[i + 1]);
    if (kernel == nullptr || norm == nullptr) continue;
    const std::optional<cuda::ClientKernelLaunch> both = cuda::WithNorm(*kernel, *norm);
    if (!both.has_value()) continue;
    (*steps)[i] = *both;
    steps->erase(steps->begin() + static_cast<ptrdiff_t>(i) + 1);
  }
}

}  // namespace

Result<std::shared_ptr<CudaClientWork>> CudaClientWork::Make(const plan::RankProgram& program,
                                                             std::vector<runtime::SlotLimit> slots,
                                                             const ClientLaunchMemory& memory) {
  std::shared_ptr<CudaClientWork> made(new CudaClientWork);
  made->memory_ = memory;
  made->is_fused_ = std::any_of(program.steps.begin(), program.steps.end(), [](const plan::Step& step) {
    const auto* collective = std::get_if<plan::CollectiveStep>(&step.work);
    return collective != nullptr && plan::IsFusedKernel(*collective);
  });
  made->has_local_work_ = program.steps.size() > 1;
  if (made->is_fused_) made->staging_ = std::make_unique<ClientStaging>(program, slots);
  for (const runtime::SlotLimit& slot : slots) made->slot_bytes_.push_back(slot.bytes);
  const runtime::ProgramLimits limits{program.rank, program.world_size, memory.half_bytes, memory.bulk_bytes,
                                      std::move(slots)};
  TANDEM_ASSIGN_OR_RETURN(made->program_, runtime::CompiledProgram::Compile(program, limits));
  return made;
}

Result<std::vector<CudaClientStep>> CudaClientWork::Build(std::span<const runtime::SlotAddress> slots) {
  runtime::LaunchContext context;
  context.signals = is_fused_ ? FusedWords() : memory_.signals;
  context.workspace = memory_.workspace;
  context.bulk = memory_.bulk;
  context.slots = slots;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<runtime::BoundWork> bound,
                          runtime::Executor::BindAroundKernel(*program_, context));
  cuda::ClientHalves halves;
  std::copy_n(memory_.workspace.begin(), halves.workspace.size(), halves.workspace.begin());
  halves.half_bytes = memory_.half_bytes;
  const cuda::ClientFusedPlaces places = FusedPlaces();
  const StepMaker make{halves, is_fused_ ? &places : nullptr};
  std::vector<CudaClientStep> steps;
  steps.reserve(bound.size());
  for (const runtime::BoundWork& work : bound) {
    TANDEM_ASSIGN_OR_RETURN(CudaClientStep step, std::visit(make, work));
    steps.push_back(std::move(step));
  }
  return steps;
}

Result<std::vector<CudaClientStep>> CudaClientWork::BuildStaged(std::span<const runtime::SlotAddress> slots) {
  if (staging_ == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<CudaClientStep> steps, Build(slots));
    MergeNorm(&steps);
    return steps;
  }
  TANDEM_ASSIGN_OR_RETURN(
      const ClientStaging::Staged staged,
      staging_->PreparedFor(slots, [this](size_t bytes) -> Result<std::shared_ptr<std::byte>> {
        if (fused_ == nullptr) return FailedPrecondition("the work has not been loaded");
        return fused_->Allocate(bytes);
      }));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<CudaClientStep> kernels, Build(staged.slots));
  std::vector<CudaClientStep> steps(staged.before.begin(), staged.before.end());
  steps.insert(steps.end(), kernels.begin(), kernels.end());
  steps.insert(steps.end(), staged.after.begin(), staged.after.end());
  return steps;
}

// A fused matmul's words are apart from all others: their value is the same in every launch.
std::array<Word*, plan::kMaxWorldSize> CudaClientWork::FusedWords() const {
  std::array<Word*, plan::kMaxWorldSize> words{};
  for (size_t rank = 0; rank < words.size(); ++rank) {
    if (memory_.signals[rank] != nullptr)
      words[rank] = memory_.signals[rank] + plan::kClientFusedWordsOffset / sizeof(Word);
  }
  return words;
}

cuda::ClientFusedPlaces CudaClientWork::FusedPlaces() const {
  cuda::ClientFusedPlaces places;
  if (!is_fused_) return places;
  const auto words = FusedWords();
  for (size_t rank = 0; rank < words.size(); ++rank) {
    places.words.handshake[rank] = reinterpret_cast<uint64_t*>(memory_.signals[rank]);
    places.words.fused[rank] = reinterpret_cast<uint64_t*>(words[rank]);
  }
  places.words.per_writer = plan::kSignalsPerWriter;
  if (fused_ != nullptr) places.memory = fused_->memory();
  return places;
}

Status CudaClientWork::Load(const GetLocalWork& local, const GetFusedState& fused, Trials trials) {
  if (is_fused_) {
    TANDEM_ASSIGN_OR_RETURN(fused_, fused());
  }
  loads_at_launch_ = trials == Trials::kNone;
  if (loads_at_launch_) {
    if (has_local_work_) {
      TANDEM_ASSIGN_OR_RETURN(local_, local());
    }
    return Status::Ok();
  }
  // Any address does, so that views are not taken for operands that are bound to nothing.
  runtime::SlotAddress address;
  address.own = reinterpret_cast<std::byte*>(memory_.signals.front());
  address.peer.fill(address.own);
  std::vector<runtime::SlotAddress> slots(slot_bytes_.size(), address);
  // A fused matmul's parts must not coincide.
  for (size_t slot = 0; is_fused_ && slot < slots.size(); ++slot) {
    constexpr size_t kApart = size_t{1} << 40;
    slots[slot].own += slot * plan::kMaxWorldSize * kApart;
    for (size_t rank = 0; rank < slots[slot].peer.size(); ++rank)
      slots[slot].peer[rank] += (slot * plan::kMaxWorldSize + rank) * kApart;
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<CudaClientStep> steps, Build(slots));
  if (steps.size() > 1) {
    TANDEM_ASSIGN_OR_RETURN(local_, local());
  }
  // Addresses decide whether a norm is merged: both ways are loaded.
  std::vector<CudaClientStep> merged = steps;
  MergeNorm(&merged);
  if (merged.size() < steps.size()) steps.insert(steps.end(), merged.begin(), merged.end());
  for (const CudaClientStep& step : steps) {
    if (const auto* product = std::get_if<MatmulArgs>(&step))
      TANDEM_RETURN_IF_ERROR(local_->Prepare(*product, Effort(trials)));
  }
  return LoadKernels(steps);
}

Status CudaClientWork::Enqueue(std::span<CudaClientStep> steps, const cuda::GroupDeviceState& group_state,
                               CUstream stream) {
  for (CudaClientStep& step : steps) {
    TANDEM_RETURN_IF_ERROR(std::visit(
        [&](auto& work) -> Status {
          if constexpr (std::is_same_v<std::decay_t<decltype(work)>, cuda::ClientKernelLaunch>) {
            cuda::SetGroupState(work, group_state);
            return cuda::Enqueue(work, stream);
          } else if constexpr (std::is_same_v<std::decay_t<decltype(work)>, StagingCopy>) {
            return fused_->Copy(work, stream);
          } else {
            return local_->Enqueue(work, stream);
          }
        },
        step));
  }
  return Status::Ok();
}

Status CudaClientWork::CheckReachable(std::span<const runtime::SlotAddress> slots,
                                      cuda::CudaDriver& driver) const {
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot].own == nullptr || slot_bytes_[slot] == 0) continue;
    CUdeviceptr reached = 0;
    const Status known = driver.PointerGetAttribute(&reached, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                                    reinterpret_cast<CUdeviceptr>(slots[slot].own));
    if (known.ok()) continue;
    return InvalidArgument("is bound to memory that the GPU does not reach: " + known.message())
        .WithContext("slot " + std::to_string(slot))
        .WithDetail({.reason = "NOT_REGISTRABLE", .field = "bindings[" + std::to_string(slot) + "]"});
  }
  return Status::Ok();
}

Result<std::span<CudaClientStep>> CudaClientWork::PreparedFor(std::span<const runtime::SlotAddress> slots,
                                                              cuda::CudaDriver& driver) {
  auto found = std::find_if(argument_cache_.begin(), argument_cache_.end(), [&](const CachedArguments& each) {
    return std::equal(each.slots.begin(), each.slots.end(), slots.begin(), slots.end());
  });
  if (found == argument_cache_.end()) {
    TANDEM_RETURN_IF_ERROR(CheckReachable(slots, driver));
    TANDEM_ASSIGN_OR_RETURN(std::vector<CudaClientStep> steps, BuildStaged(slots));
    if (loads_at_launch_) {
      SlowCallScope scope(driver);
      TANDEM_RETURN_IF_ERROR(LoadKernels(steps));
      loads_at_launch_ = false;
    }
    if (argument_cache_.size() < kMaxCachedArguments) {
      found = argument_cache_.emplace(argument_cache_.end());
    } else {
      found = std::min_element(
          argument_cache_.begin(), argument_cache_.end(),
          [](const CachedArguments& a, const CachedArguments& b) { return a.used < b.used; });
    }
    found->slots.assign(slots.begin(), slots.end());
    found->steps = std::move(steps);
  }
  found->used = ++uses_;
  return std::span<CudaClientStep>(found->steps);
}

}  // namespace tandem::client
