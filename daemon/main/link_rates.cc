#include "daemon/main/link_rates.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string>
#include <utility>

#include "common/unique_fd.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {
namespace {

using engine::v1::Command;

constexpr std::chrono::milliseconds kDeadline{10000};

// Ids that no segment of a group has (those count from 1), nor one of the probe.
uint64_t RateSegmentId(int gpu) { return (uint64_t{3} << 62) | static_cast<uint64_t>(gpu); }

// {from, to} of each ordered pair with peer access.
std::vector<std::pair<int, int>> PairsOf(const Topology& topology) {
  std::vector<std::pair<int, int>> pairs;
  for (int from = 0; from < topology.size(); ++from) {
    for (int to = 0; to < topology.size(); ++to) {
      if (topology.HasPeerAccess(from, to)) pairs.emplace_back(from, to);
    }
  }
  return pairs;
}

// The least that is allocated.
constexpr uint64_t kGranularity = uint64_t{2} << 20;

// A segment on each GPU, mapped by the others: in each, what is sent, then room for what comes.
class LinkSegments {
 public:
  LinkSegments(Engines& engines, const Topology& topology, uint64_t bytes)
      : engines_(engines),
        topology_(topology),
        bytes_(bytes),
        segment_bytes_((2 * bytes + kGranularity - 1) / kGranularity * kGranularity) {}
  ~LinkSegments() {
    // Mappings before what they map, though an engine that has ended has let go of both.
    for (auto held = held_.rbegin(); held != held_.rend(); ++held) {
      Command command;
      command.mutable_remove_segment()->set_segment_id(RateSegmentId(held->second));
      (void)engines_.Call(held->first, std::move(command));
    }
  }
  LinkSegments(const LinkSegments&) = delete;
  LinkSegments& operator=(const LinkSegments&) = delete;

  Status Make() {
    std::vector<UniqueFd> fds;
    for (int gpu = 0; gpu < topology_.size(); ++gpu) {
      TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, engines_.AllocateSegment(gpu, RateSegmentId(gpu), segment_bytes_));
      held_.emplace_back(gpu, gpu);
      fds.push_back(std::move(fd));
    }
    for (const auto& [gpu, owner] : PairsOf(topology_)) {
      Command command;
      command.mutable_add_segment()->set_segment_id(RateSegmentId(owner));
      command.mutable_add_segment()->set_bytes(segment_bytes_);
      TANDEM_RETURN_IF_ERROR(engines_.Call(gpu, std::move(command), {fds[static_cast<size_t>(owner)].get()}));
      held_.emplace_back(gpu, owner);
    }
    return Status::Ok();
  }

  // In bytes a second.
  Result<uint64_t> Measure(int from, int to) {
    Command command;
    engine::v1::MeasureLink& link = *command.mutable_measure_link();
    link.set_segment_id(RateSegmentId(to));
    link.set_offset(bytes_);
    link.set_bytes(bytes_);
    link.set_staging_segment(RateSegmentId(from));
    TANDEM_ASSIGN_OR_RETURN(std::string text, engines_.Ask(from, std::move(command), kDeadline));
    uint64_t rate = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
    if (error != std::errc() || end != text.data() + text.size() || rate == 0) {
      return Internal("an engine reports '" + text + "' as a link's rate");
    }
    return rate;
  }

 private:
  Engines& engines_;
  const Topology& topology_;
  const uint64_t bytes_, segment_bytes_;
  std::vector<std::pair<int, int>> held_;  // {holder, owner}
};

}  // namespace

Result<std::vector<LinkRate>> MeasureLinks(Engines& engines, const Topology& topology, uint64_t bytes) {
  std::vector<LinkRate> rates;
  const auto pairs = PairsOf(topology);
  if (pairs.empty()) return rates;
  LinkSegments segments(engines, topology, bytes);
  TANDEM_RETURN_IF_ERROR(segments.Make());
  for (const auto& [from, to] : pairs) {
    TANDEM_ASSIGN_OR_RETURN(uint64_t rate, segments.Measure(from, to));
    rates.push_back({topology.gpus[static_cast<size_t>(from)].uuid,
                     topology.gpus[static_cast<size_t>(to)].uuid, static_cast<double>(rate) / 1e9});
  }
  return rates;
}

bool HasAllLinks(const std::vector<LinkRate>& rates, const Topology& topology) {
  const auto pairs = PairsOf(topology);
  return std::all_of(pairs.begin(), pairs.end(), [&](const std::pair<int, int>& pair) {
    const std::string& from = topology.gpus[static_cast<size_t>(pair.first)].uuid;
    const std::string& to = topology.gpus[static_cast<size_t>(pair.second)].uuid;
    return std::any_of(rates.begin(), rates.end(),
                       [&](const LinkRate& rate) { return rate.from == from && rate.to == to; });
  });
}

}  // namespace tandem::daemon
