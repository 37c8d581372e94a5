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
uint64_t SegmentId(int gpu) { return (uint64_t{3} << 62) | static_cast<uint64_t>(gpu); }

bool Linked(const Topology& topology, int a, int b) {
  return a != b && topology.p2p[static_cast<size_t>(a)][static_cast<size_t>(b)] &&
         topology.p2p[static_cast<size_t>(b)][static_cast<size_t>(a)];
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
      command.mutable_remove_segment()->set_segment_id(SegmentId(held->second));
      (void)engines_.Call(held->first, std::move(command));
    }
  }
  LinkSegments(const LinkSegments&) = delete;
  LinkSegments& operator=(const LinkSegments&) = delete;

  Status Make() {
    std::vector<UniqueFd> fds;
    for (int gpu = 0; gpu < topology_.size(); ++gpu) {
      TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, engines_.AllocateSegment(gpu, SegmentId(gpu), segment_bytes_));
      held_.emplace_back(gpu, gpu);
      fds.push_back(std::move(fd));
    }
    for (int gpu = 0; gpu < topology_.size(); ++gpu) {
      for (int owner = 0; owner < topology_.size(); ++owner) {
        if (!Linked(topology_, gpu, owner)) continue;
        Command command;
        command.mutable_add_segment()->set_segment_id(SegmentId(owner));
        command.mutable_add_segment()->set_bytes(segment_bytes_);
        TANDEM_RETURN_IF_ERROR(engines_.Call(gpu, std::move(command), {fds[static_cast<size_t>(owner)].get()}));
        held_.emplace_back(gpu, owner);
      }
    }
    return Status::Ok();
  }

  // In bytes a second.
  Result<uint64_t> Measure(int from, int to) {
    Command command;
    engine::v1::MeasureLink& link = *command.mutable_measure_link();
    link.set_segment_id(SegmentId(to));
    link.set_offset(bytes_);
    link.set_bytes(bytes_);
    link.set_staging_segment(SegmentId(from));
    TANDEM_ASSIGN_OR_RETURN(std::string text, engines_.Ask(from, std::move(command), kDeadline));
    uint64_t rate = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
    if (error != std::errc() || end != text.data() + text.size() || rate == 0) {
      return Internal("an engine measures a link at '" + text + "'");
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
  if (HasAllLinks(rates, topology)) return rates;  // there are none
  LinkSegments segments(engines, topology, bytes);
  TANDEM_RETURN_IF_ERROR(segments.Make());
  for (int from = 0; from < topology.size(); ++from) {
    for (int to = 0; to < topology.size(); ++to) {
      if (!Linked(topology, from, to)) continue;
      TANDEM_ASSIGN_OR_RETURN(uint64_t rate, segments.Measure(from, to));
      rates.push_back({topology.gpus[static_cast<size_t>(from)].uuid, topology.gpus[static_cast<size_t>(to)].uuid,
                       static_cast<double>(rate) / 1e9});
    }
  }
  return rates;
}

bool HasAllLinks(const std::vector<LinkRate>& rates, const Topology& topology) {
  for (int from = 0; from < topology.size(); ++from) {
    for (int to = 0; to < topology.size(); ++to) {
      if (!Linked(topology, from, to)) continue;
      const std::string &a = topology.gpus[static_cast<size_t>(from)].uuid, &b = topology.gpus[static_cast<size_t>(to)].uuid;
      if (std::none_of(rates.begin(), rates.end(), [&](const LinkRate& rate) { return rate.from == a && rate.to == b; })) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace tandem::daemon
