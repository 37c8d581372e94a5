#include "daemon/control/base/gpu_sharing.h"

namespace tandem::daemon {
namespace {

// Measured on H200s under one server, an empty plan (bench/figures/launches.md): alone on one rank, in a
// graph on two (10.0 to 11.4 us in four runs), rounded up. No other model or world is promised it.
constexpr char kFastCostOfOne[] =
    "the hand-over of an empty launch took 8 us where it was measured (H200, one rank)";
constexpr char kFastCost[] =
    "the hand-over of an empty launch took 12 us where it was measured (H200, two ranks)";
constexpr char kSlowCost[] =
    "where client and engine both run kernels a launch costs about 290 us more, where one side only copies "
    "11 to 16 us";

std::string MpsText(const MpsEndpoint& endpoint) {
  return endpoint.answers ? "under MPS at " + endpoint.directory
                          : "without MPS (nothing answers at " + endpoint.directory + ")";
}

}  // namespace

GpuSharing DescribeGpuSharing(bool on_gpu, const std::vector<RankSharing>& ranks) {
  GpuSharing placement;
  if (!on_gpu) return placement;
  std::string apart;
  for (const RankSharing& rank : ranks) {
    if (ShareMpsServer(rank.client, rank.engine)) continue;
    placement.slow = true;
    apart += (apart.empty() ? "" : "; ") + rank.name + "'s client runs " + MpsText(rank.client) +
             ", its engine " + MpsText(rank.engine);
  }
  placement.text += placement.slow ? ", no shared MPS server: " + apart + "; " + kSlowCost
                                   : std::string(", clients and engines share an MPS server: ") +
                                         (ranks.size() == 1 ? kFastCostOfOne : kFastCost);
  return placement;
}

Status CheckGpuSharing(const GpuSharing& placement, OnSlowPlacement strictness) {
  if (!placement.slow || strictness != OnSlowPlacement::kError) return Status::Ok();
  return Status(Code::kFailedPrecondition, "on_slow_placement = error: " + placement.text,
                {.reason = "SLOW_PLACEMENT", .who = {}, .field = "on_slow_placement"});
}

}  // namespace tandem::daemon
