#include "daemon/observe/gpu_health.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace tandem::daemon {
namespace {

// XIDs that a program causes, by a wrong access or its own end: the GPU serves the next one. As NVIDIA's
// device plugin for Kubernetes sees it.
constexpr std::array<uint32_t, 6> kProgramXids = {13, 31, 43, 45, 68, 109};

// XIDs that operators meet most, in NVIDIA's words.
struct KnownXid {
  uint32_t xid;
  const char* name;
};
constexpr std::array<KnownXid, 14> kKnownXids = {{{48, "double-bit ECC error"},
                                                  {61, "internal microcontroller breakpoint"},
                                                  {62, "internal microcontroller halt"},
                                                  {63, "row remapping or page retirement"},
                                                  {64, "row remapping or page retirement failed"},
                                                  {74, "NVLink error"},
                                                  {79, "the GPU has fallen off the bus"},
                                                  {92, "high single-bit ECC error rate"},
                                                  {94, "contained ECC error"},
                                                  {95, "uncontained ECC error"},
                                                  {119, "GSP RPC timeout"},
                                                  {120, "GSP error"},
                                                  {140, "ECC unrecovered error"},
                                                  {149, "NVLink error"}}};

std::string XidText(uint32_t xid) {
  const auto* known = std::find_if(kKnownXids.begin(), kKnownXids.end(),
                                   [xid](const KnownXid& each) { return each.xid == xid; });
  return "XID " + std::to_string(xid) +
         (known == kKnownXids.end() ? "" : " (" + std::string(known->name) + ")");
}

std::string Counted(uint64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

uint64_t Grown(uint64_t now, uint64_t before) { return now > before ? now - before : 0; }

}  // namespace

std::string_view GpuFaultName(GpuFault fault) {
  switch (fault) {
    case GpuFault::kLost: return "lost";
    case GpuFault::kXid: return "xid";
    case GpuFault::kEcc: return "ecc";
    case GpuFault::kRows: return "rows";
    case GpuFault::kLinks: return "links";
    case GpuFault::kClocks: return "clocks";
  }
  return "lost";
}

bool IsGpuFault(uint32_t xid) {
  return std::find(kProgramXids.begin(), kProgramXids.end(), xid) == kProgramXids.end();
}

std::vector<uint32_t> Update(GpuReading reading, GpuCondition* condition) {
  std::vector<uint32_t> faults;
  for (const uint32_t xid : reading.xids) {
    ++condition->xids[xid];
    if (!IsGpuFault(xid)) continue;
    condition->xid = xid;
    faults.push_back(xid);
  }
  condition->latest = std::move(reading);
  return faults;
}

std::vector<std::pair<GpuFault, std::string>> FaultsOf(const GpuCondition& condition) {
  std::vector<std::pair<GpuFault, std::string>> faults;
  const GpuReading& now = condition.latest;
  if (now.lost) faults.emplace_back(GpuFault::kLost, "is lost: it has fallen off the bus or needs a reset");
  if (condition.xid != 0) faults.emplace_back(GpuFault::kXid, "had " + XidText(condition.xid));
  if (now.uncorrected_ecc.value_or(0) > 0) {
    faults.emplace_back(GpuFault::kEcc, "had " + Counted(*now.uncorrected_ecc, "uncorrected memory error") +
                                            " since the driver was loaded");
  }
  if (now.rows.has_value() && now.rows->failed)
    faults.emplace_back(GpuFault::kRows, "has memory that it could not replace by spare rows");
  if (now.rows.has_value() && now.rows->pending)
    faults.emplace_back(GpuFault::kRows, "replaces bad memory by spare rows at its next reset");
  const int missing = now.active_links.has_value() ? condition.expected_links - *now.active_links : 0;
  if (missing > 0) {
    faults.emplace_back(GpuFault::kLinks, "has " + std::to_string(missing) + " of " +
                                              std::to_string(condition.expected_links) +
                                              " NVLinks that are not active");
  }
  if (now.link_errors.has_value()) {
    const uint64_t recoveries = Grown(now.link_errors->recoveries, condition.errors_at_start.recoveries);
    if (recoveries > 0) {
      faults.emplace_back(GpuFault::kLinks,
                          "had NVLinks that failed and were trained again, " + Counted(recoveries, "time"));
    }
  }
  std::string limits;
  for (const ClockLimit& limit : kClockLimits) {
    if (!limit.is_fault || (now.clock_limits.value_or(0) & limit.bit) == 0) continue;
    limits += (limits.empty() ? "" : ", ") + std::string(limit.name);
  }
  if (!limits.empty()) faults.emplace_back(GpuFault::kClocks, "runs with lower clocks: " + limits);
  return faults;
}

}  // namespace tandem::daemon
