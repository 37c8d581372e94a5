#include "daemon/control/joins/join_checks.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "common/cli/nearest_name.h"
#include "common/op_tables.h"
#include "daemon/control/base/blame.h"
#include "daemon/planner/planner.h"
#include "program/program.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {
namespace {

std::string HostId() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

// The kernel's id of this boot: clients in containers with another hostname may send it instead.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string RankOf(const v1::JoinGroupRequest& request) { return "rank " + std::to_string(request.rank()); }

std::string Of(const v1::JoinGroupRequest& request) { return "group '" + request.name() + "': "; }

Status Differ(const JoinClaim& first, const JoinClaim& second, const std::string& field,
              const std::string& text) {
  StatusDetail detail = BlameRanks(
      "JOIN_MISMATCH",
      {static_cast<uint32_t>(first.request.rank()), static_cast<uint32_t>(second.request.rank())}, field);
  return InvalidArgument(Of(second.request) + text).WithDetail(std::move(detail));
}

// Engines know NCCL's other names.
const std::string kOptions[] = {"autotune",      "determinism",   "nccl.blocking", "nccl.cga_cluster_size",
                                "nccl.max_ctas", "nccl.min_ctas", "order",         "placement"};

}  // namespace

Status CheckJoinRequest(const v1::JoinGroupRequest& request, int pid) {
  const std::string who = Of(request) + RankOf(request) + " (pid " + std::to_string(pid) + ")";
  const int world = request.world_size();
  if (world < 1 || world > plan::kMaxWorldSize) {
    return InvalidArgument(who + " asks for world size " + std::to_string(world) + "; 1 to " +
                           std::to_string(plan::kMaxWorldSize) + " are possible")
        .WithDetail(BlameRank("JOIN_MISMATCH", request.rank(), "world_size", pid));
  }
  if (request.rank() < 0 || request.rank() >= world) {
    return OutOfRange(who + " is out of range for world size " + std::to_string(world))
        .WithDetail(BlameRank("JOIN_MISMATCH", request.rank(), "rank", pid));
  }
  if (!request.host_id().empty() && request.host_id() != HostId() && request.host_id() != BootId()) {
    return FailedPrecondition(who + " is on another host, '" + request.host_id() +
                              "'; a group lives on one node")
        .WithDetail(BlameRank("OTHER_HOST", request.rank(), "host_id", pid));
  }
  for (const auto& [option, value] : request.options()) {
    if (option.starts_with("nccl.") || std::count(std::begin(kOptions), std::end(kOptions), option) > 0)
      continue;
    return InvalidArgument(who + ": there is no group option '" + option + "'" +
                           cli::DidYouMean(option, kOptions))
        .WithDetail(BlameRank("BAD_FIELD", request.rank(), "options", pid));
  }
  if (const auto placement = request.options().find("placement"); placement != request.options().end()) {
    const Status known = plan::ParsePlacement(placement->second).status();
    if (!known.ok()) {
      return known.WithContext(who + ": option 'placement'")
          .WithDetail(BlameRank("JOIN_MISMATCH", request.rank(), "options", pid));
    }
  }
  if (const auto level = request.options().find("determinism"); level != request.options().end()) {
    if (!ValueOf<Determinism>(level->second).has_value()) {
      return InvalidArgument(who + ": option 'determinism' is one of " + ListedNames<Determinism>() +
                             ", not '" + level->second + "'")
          .WithDetail(BlameRank("JOIN_MISMATCH", request.rank(), "options", pid));
    }
  }
  if (const auto order = request.options().find("order"); order != request.options().end()) {
    if (order->second != "any" && order->second != "same") {
      return InvalidArgument(who + ": option 'order' is any or same, not '" + order->second + "'")
          .WithDetail(BlameRank("JOIN_MISMATCH", request.rank(), "options", pid));
    }
  }
  if (const auto autotune = request.options().find("autotune"); autotune != request.options().end()) {
    if (autotune->second != "off" && autotune->second != "prepare") {
      return InvalidArgument(who + ": option 'autotune' is off or prepare, not '" + autotune->second + "'")
          .WithDetail(BlameRank("JOIN_MISMATCH", request.rank(), "options", pid));
    }
  }
  return Status::Ok();
}

Status CompareJoins(const JoinClaim& first, const JoinClaim& second) {
  const v1::JoinGroupRequest &a = first.request, &b = second.request;
  const std::string they = RankOf(a), we = RankOf(b);
  if (a.world_size() != b.world_size()) {
    return Differ(first, second, "world_size",
                  they + " has world_size " + std::to_string(a.world_size()) + ", " + we + " has " +
                      std::to_string(b.world_size()));
  }
  if (a.rank() == b.rank()) {
    return AlreadyExists(Of(b) + we + " is taken by pid " + std::to_string(first.pid) + "; pid " +
                         std::to_string(second.pid) + " asks for it too")
        .WithDetail(BlameRank("JOIN_MISMATCH", b.rank(), "rank", second.pid));
  }
  if (first.gpu == second.gpu) {
    StatusDetail detail = BlameRanks(
        "JOIN_MISMATCH", {static_cast<uint32_t>(a.rank()), static_cast<uint32_t>(b.rank())}, "gpu_uuid");
    detail.gpu = first.gpu;
    return InvalidArgument(Of(b) + they + " and " + we + " both use GPU " + b.gpu_uuid() +
                           "; a group has one rank per GPU")
        .WithDetail(std::move(detail));
  }
  if (a.launch_deadline_ms() != b.launch_deadline_ms()) {
    return Differ(first, second, "launch_deadline_ms",
                  they + " has launch_deadline_ms " + std::to_string(a.launch_deadline_ms()) + ", " + we +
                      " has " + std::to_string(b.launch_deadline_ms()));
  }
  if (a.on_slow_placement() != b.on_slow_placement()) {
    return Differ(first, second, "on_slow_placement", they + " and " + we + " do not ask for the same");
  }
  std::map<std::string, std::string> mine(b.options().begin(), b.options().end());
  std::map<std::string, std::string> theirs(a.options().begin(), a.options().end());
  for (const auto& [key, value] : theirs) mine.try_emplace(key, "(absent)");
  for (const auto& [key, value] : mine) {
    const std::string their_value = theirs.contains(key) ? theirs[key] : "(absent)";
    if (value == their_value) continue;
    return Differ(
        first, second, "options",
        "option '" + key + "' is '" + their_value + "' on " + they + " and '" + value + "' on " + we);
  }
  return Status::Ok();
}

}  // namespace tandem::daemon
