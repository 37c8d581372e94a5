#include "daemon/main/pair_probe.h"

#include <charconv>
#include <fstream>
#include <functional>
#include <mutex>
#include <sstream>
#include <thread>

#include "common/replace_file.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {
namespace {

using engine::v1::Command;

constexpr uint64_t kSegmentBytes = uint64_t{2} << 20;
constexpr uint64_t kProbeBytes = uint64_t{128} << 10;
constexpr char kHeader[] = "tandem pair probe 1";

// Ids that no segment of a group has: those count from 1.
uint64_t ProbeSegmentId(int gpu) { return (uint64_t{1} << 63) | static_cast<uint64_t>(gpu); }
// In each segment: staging memory, then room for each writer.
uint64_t RegionOf(int writer) { return kProbeBytes * static_cast<uint64_t>(writer + 1); }

class Prober {
 public:
  Prober(Engines& engines, const Topology& topology) : engines_(engines), topology_(topology) {}

  Result<std::vector<PairFailure>> Run() {
    Status status = Share();
    for (bool copy_engine : {true, false}) {
      const std::string by = copy_engine ? " by copy engine: " : " by kernel: ";
      // All engines at once: so links carry traffic both ways, as they do later.
      if (status.ok()) status = Phase("writing" + by, false, true, copy_engine);
      if (status.ok()) status = Phase("checking what was written" + by, true, false, copy_engine);
      if (status.ok()) status = Phase("reading back" + by, true, true, copy_engine);
    }
    Remove();
    if (!status.ok()) return status;
    return std::move(failures_);
  }

 private:
  // Data from `from`'s engine in `to`'s segment.
  struct Pair {
    int from, to;
    bool operator==(const Pair&) const = default;
  };

  // `work(gpu)` for each GPU, side by side: the first error of an engine that is not there.
  Status ForEachGpu(const std::function<Status(int)>& work) {
    std::vector<Status> outcomes(static_cast<size_t>(topology_.size()));
    std::vector<std::thread> threads;
    threads.reserve(outcomes.size());
    for (int gpu = 0; gpu < topology_.size(); ++gpu) {
      threads.emplace_back([&, gpu] { outcomes[static_cast<size_t>(gpu)] = work(gpu); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& outcome : outcomes) TANDEM_RETURN_IF_ERROR(outcome);
    return Status::Ok();
  }

  void Fail(const Pair& pair, const std::string& reason) {
    std::lock_guard lock(mutex_);
    std::erase(pairs_, pair);
    failures_.push_back({topology_.gpus[static_cast<size_t>(pair.from)].uuid,
                         topology_.gpus[static_cast<size_t>(pair.to)].uuid, reason});
  }

  std::vector<Pair> PairsOf(int gpu, bool as_writer) {
    std::lock_guard lock(mutex_);
    std::vector<Pair> pairs;
    for (const Pair& pair : pairs_) {
      if ((as_writer ? pair.from : pair.to) == gpu) pairs.push_back(pair);
    }
    return pairs;
  }

  // A segment on each GPU, mapped by all that can.
  Status Share() {
    fds_.resize(static_cast<size_t>(topology_.size()));
    TANDEM_RETURN_IF_ERROR(ForEachGpu([this](int gpu) -> Status {
      TANDEM_ASSIGN_OR_RETURN(fds_[static_cast<size_t>(gpu)],
                              engines_.AllocateSegment(gpu, ProbeSegmentId(gpu), kSegmentBytes));
      std::lock_guard lock(mutex_);
      held_.push_back({gpu, gpu});
      return Status::Ok();
    }));
    return ForEachGpu([this](int gpu) -> Status {
      for (int owner = 0; owner < topology_.size(); ++owner) {
        if (!topology_.HasPeerAccess(gpu, owner)) continue;
        Command command;
        command.mutable_add_segment()->set_segment_id(ProbeSegmentId(owner));
        command.mutable_add_segment()->set_bytes(kSegmentBytes);
        Status mapped = engines_.Call(gpu, std::move(command), {fds_[static_cast<size_t>(owner)].get()});
        if (mapped.code() == Code::kUnavailable) return mapped;
        if (!mapped.ok()) {
          Fail({gpu, owner}, "its memory cannot be mapped: " + mapped.message());
          continue;
        }
        std::lock_guard lock(mutex_);
        held_.push_back({gpu, owner});
        pairs_.push_back({gpu, owner});
      }
      return Status::Ok();
    });
  }

  void Remove() {
    (void)ForEachGpu([this](int gpu) {
      for (const Pair& held : held_) {
        if (held.from != gpu) continue;
        Command command;
        command.mutable_remove_segment()->set_segment_id(ProbeSegmentId(held.to));
        // An engine that has ended has let go of it.
        (void)engines_.Call(gpu, std::move(command));
      }
      return Status::Ok();
    });
  }

  static uint64_t SeedOf(const Pair& pair, bool copy_engine) {
    return static_cast<uint64_t>((pair.from * kMaxGpus + pair.to) * 2 + copy_engine + 1) * 0x9e3779b97f4a7c15;
  }

  Status Phase(const std::string& what, bool check, bool as_writer, bool copy_engine) {
    return ForEachGpu([&](int gpu) -> Status {
      // A target that fails ends the command: the others are asked for again.
      for (std::vector<Pair> pairs = PairsOf(gpu, as_writer); !pairs.empty();
           pairs = PairsOf(gpu, as_writer)) {
        Command command;
        engine::v1::Probe& probe = *command.mutable_probe();
        for (const Pair& pair : pairs) {
          engine::v1::ProbeTarget* target = probe.add_targets();
          target->set_segment_id(ProbeSegmentId(pair.to));
          target->set_offset(RegionOf(pair.from));
          target->set_seed(SeedOf(pair, copy_engine));
        }
        probe.set_bytes(kProbeBytes);
        probe.set_check(check);
        probe.set_copy_engine(copy_engine);
        probe.set_staging_segment(ProbeSegmentId(gpu));
        Status status = engines_.Call(gpu, std::move(command));
        if (status.ok() || status.code() == Code::kUnavailable) return status;
        size_t failed = 0;
        const std::string& index = status.detail().field;
        std::from_chars(index.data(), index.data() + index.size(), failed);
        Fail(pairs[failed < pairs.size() ? failed : 0], what + status.message());
      }
      return Status::Ok();
    });
  }

  Engines& engines_;
  const Topology& topology_;
  std::vector<UniqueFd> fds_;  // by GPU
  std::mutex mutex_;
  std::vector<Pair> held_;   // {holder, owner} of mapped segments
  std::vector<Pair> pairs_;  // that have not failed
  std::vector<PairFailure> failures_;
};

std::string Identity(const std::string& boot_id, const Topology& topology) {
  std::string text = std::string(kHeader) + "\nboot " + boot_id + "\n";
  for (int i = 0; i < topology.size(); ++i) {
    text += "gpu " + topology.gpus[static_cast<size_t>(i)].uuid;
    // The pairs that were probed at all.
    for (int j = 0; j < topology.size(); ++j) text += topology.HasPeerAccess(i, j) ? " 1" : " 0";
    text += "\n";
  }
  return text;
}

}  // namespace

Result<std::vector<PairFailure>> ProbePairs(Engines& engines, const Topology& topology) {
  if (topology.size() < 2) return std::vector<PairFailure>();
  return Prober(engines, topology).Run();
}

Result<ProbeOutcome> LoadProbe(const std::string& path, const std::string& boot_id,
                               const Topology& topology) {
  if (boot_id.empty()) return NotFound("the kernel does not name this boot");
  std::ifstream file(path);
  if (!file) return NotFound("no " + path);
  std::stringstream all;
  all << file.rdbuf();
  const std::string text = all.str(), identity = Identity(boot_id, topology);
  if (text.compare(0, identity.size(), identity) != 0)
    return NotFound(path + " is of another boot or other GPUs");
  ProbeOutcome outcome;
  std::istringstream lines(text.substr(identity.size()));
  bool complete = false;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind;
    PairFailure failure;
    LinkRate link;
    words >> kind;
    if (kind == "end") {
      complete = true;
      break;
    }
    if (kind == "link") {
      if (!(words >> link.from >> link.to >> link.gb_per_second) || !(link.gb_per_second > 0)) {
        return NotFound(path + " is malformed");
      }
      outcome.links.push_back(std::move(link));
      continue;
    }
    if (kind != "failed" || !(words >> failure.from >> failure.to)) return NotFound(path + " is malformed");
    std::getline(words >> std::ws, failure.reason);
    outcome.failures.push_back(std::move(failure));
  }
  if (!complete) return NotFound(path + " is cut off");
  return outcome;
}

Status SaveProbe(const std::string& path, const std::string& boot_id, const Topology& topology,
                 const ProbeOutcome& outcome) {
  if (boot_id.empty()) return Status::Ok();
  std::string text = Identity(boot_id, topology);
  for (const PairFailure& failure : outcome.failures) {
    std::string reason = failure.reason;
    for (char& c : reason) c = c == '\n' ? ' ' : c;
    text += "failed " + failure.from + " " + failure.to + " " + reason + "\n";
  }
  for (const LinkRate& link : outcome.links) {
    text += "link " + link.from + " " + link.to + " " + std::to_string(link.gb_per_second) + "\n";
  }
  return ReplaceFile(path, text + "end\n");
}

void DropFailedPairs(const std::vector<PairFailure>& failures, Topology* topology) {
  for (const PairFailure& failure : failures) {
    Result<int> from = topology->Find(failure.from), to = topology->Find(failure.to);
    if (!from.ok() || !to.ok()) continue;
    topology->p2p[*from][*to] = topology->p2p[*to][*from] = false;
  }
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace tandem::daemon
