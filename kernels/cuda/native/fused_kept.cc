#include "kernels/cuda/native/fused_kept.h"

namespace tandem::cuda {
namespace {

// By value the tables cost a launch a microsecond, in device memory 1.2 % of the kernel's time (H200): a stage takes 0.7 us.
constexpr int64_t kMostKeptStages = 96;

// The stages that a CTA computes.
int64_t Stages(const FusedScalars& scalars, const FusedVariant& variant, int ctas) {
  const int64_t tiles = int64_t{scalars.units} * variant.cluster_m * variant.cluster_n;
  return (ctas > 0 ? (tiles + ctas - 1) / ctas : 1) * scalars.k_blocks;
}

}  // namespace

KeptTables::KeptTables(void* memory, size_t bytes) {
  auto* tables = static_cast<FusedTables*>(memory);
  for (size_t i = bytes / sizeof(FusedTables); i-- > 0;) free_.push_back(tables + i);
}

FusedTables* KeptTables::Take() {
  if (free_.empty()) return nullptr;
  FusedTables* place = free_.back();
  free_.pop_back();
  return place;
}

PreparedFused::~PreparedFused() {
  // A launch may still read it: who takes it next writes it on the same stream, behind that launch.
  if (place_ != nullptr) places_->Give(place_);
}

Status PreparedFused::Enqueue(const FusedTurn& turn, const std::shared_ptr<KeptTables>& kept, CUstream_st* stream,
                              const FusedCalls& calls) {
  params_.epoch = turn.epoch;
  params_.abort_word = turn.abort_word;
  params_.guard_word = turn.guard_word;
  params_.guard_value = turn.guard_value;
  if (place_ == nullptr && kept != nullptr && launches_ >= kByValue && Stages(params_, *variant_, ctas_) <= kMostKeptStages) {
    if (FusedTables* place = kept->Take(); place != nullptr) {
      if (Status copied = calls.keep(params_, place, stream); !copied.ok()) {
        kept->Give(place);
        return copied;
      }
      places_ = kept;
      place_ = place;
    }
  }
  if (launches_ < kByValue) ++launches_;
  // Another stream is not ordered behind the copy.
  if (place_ == nullptr || places_ != kept) return calls.launch(params_, *variant_, ctas_, stream);
  return calls.launch_kept({params_, place_}, *variant_, ctas_, stream);
}

}  // namespace tandem::cuda
