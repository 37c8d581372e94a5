#include "daemon/main/pair_probe.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {
namespace {

using engine::v1::Command;

constexpr uint64_t kSegmentBytes = uint64_t{2} << 20;
constexpr uint64_t kProbeBytes = uint64_t{128} << 10;
constexpr char kHeader[] = "tandem pair probe 1";

// Ids that no segment of a group has: those count from 1.
uint64_t SegmentId(int gpu) { return (uint64_t{1} << 63) | static_cast<uint64_t>(gpu); }
// In each segment: staging memory, then room for each writer.
uint64_t RegionOf(int writer) { return kProbeBytes * static_cast<uint64_t>(writer + 1); }

class Prober {
 public:
  Prober(Engines& engines, const Topology& topology) : engines_(engines), topology_(topology) {}

  Result<std::vector<PairFailure>> Run() {
    Status status = Share();
    for (int from = 0; status.ok() && from < topology_.size(); ++from) {
      for (int to = 0; status.ok() && to < topology_.size(); ++to) {
        if (from != to && Usable(from, to)) status = ProbePair(from, to);
      }
    }
    Remove();
    if (!status.ok()) return status;
    return std::move(failures_);
  }

 private:
  bool Usable(int a, int b) const { return topology_.p2p[a][b] && topology_.p2p[b][a]; }

  void Fail(int from, int to, const std::string& reason) {
    failures_.push_back({topology_.gpus[static_cast<size_t>(from)].uuid, topology_.gpus[static_cast<size_t>(to)].uuid,
                         reason});
  }

  // A segment on each GPU, mapped by all that can.
  Status Share() {
    for (int gpu = 0; gpu < topology_.size(); ++gpu) {
      TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, engines_.AllocateSegment(gpu, SegmentId(gpu), kSegmentBytes));
      holders_.push_back({gpu, gpu});
      for (int peer = 0; peer < topology_.size(); ++peer) {
        if (peer == gpu || !Usable(gpu, peer)) continue;
        Command command;
        command.mutable_add_segment()->set_segment_id(SegmentId(gpu));
        command.mutable_add_segment()->set_bytes(kSegmentBytes);
        Status mapped = engines_.Call(peer, std::move(command), {fd.get()});
        if (mapped.code() == Code::kUnavailable) return mapped;
        if (mapped.ok()) {
          holders_.push_back({gpu, peer});
        } else {
          Fail(peer, gpu, "its memory cannot be mapped: " + mapped.message());
        }
      }
    }
    return Status::Ok();
  }

  void Remove() {
    for (const auto& [owner, holder] : holders_) {
      Command command;
      command.mutable_remove_segment()->set_segment_id(SegmentId(owner));
      // An engine that has ended has let go of it.
      (void)engines_.Call(holder, std::move(command));
    }
  }

  bool Holds(int owner, int holder) const {
    for (const auto& [of, by] : holders_) {
      if (of == owner && by == holder) return true;
    }
    return false;
  }

  Status ProbePair(int from, int to) {
    if (!Holds(to, from)) return Status::Ok();  // has failed already
    for (bool copy_engine : {true, false}) {
      const uint64_t seed = ++seed_ * 0x9e3779b97f4a7c15;
      const std::string by = copy_engine ? " by copy engine: " : " by kernel: ";
      struct Step {
        int gpu;
        bool check;
        const char* what;
      };
      for (const Step& step : {Step{from, false, "writing"}, Step{to, true, "checking what was written"},
                               Step{from, true, "reading back"}}) {
        Command command;
        engine::v1::Probe& probe = *command.mutable_probe();
        probe.set_segment_id(SegmentId(to));
        probe.set_offset(RegionOf(from));
        probe.set_bytes(kProbeBytes);
        probe.set_seed(seed);
        probe.set_check(step.check);
        probe.set_copy_engine(copy_engine);
        probe.set_staging_segment(SegmentId(from));
        Status status = engines_.Call(step.gpu, std::move(command));
        if (status.code() == Code::kUnavailable) return status;
        if (!status.ok()) {
          Fail(from, to, step.what + by + status.message());
          return Status::Ok();
        }
      }
    }
    return Status::Ok();
  }

  Engines& engines_;
  const Topology& topology_;
  std::vector<std::pair<int, int>> holders_;  // {owner of a segment, who has mapped it}
  std::vector<PairFailure> failures_;
  uint64_t seed_ = 0;
};

std::string Identity(const std::string& boot_id, const Topology& topology) {
  std::string text = std::string(kHeader) + "\nboot " + boot_id + "\n";
  for (int i = 0; i < topology.size(); ++i) {
    text += "gpu " + topology.gpus[static_cast<size_t>(i)].uuid;
    // Which pairs were probed at all.
    for (int j = 0; j < topology.size(); ++j) text += topology.p2p[i][j] && topology.p2p[j][i] ? " 1" : " 0";
    text += "\n";
  }
  return text;
}

}  // namespace

Result<std::vector<PairFailure>> ProbePairs(Engines& engines, const Topology& topology) {
  if (topology.size() < 2) return std::vector<PairFailure>();
  return Prober(engines, topology).Run();
}

Result<std::vector<PairFailure>> LoadProbe(const std::string& path, const std::string& boot_id,
                                           const Topology& topology) {
  if (boot_id.empty()) return NotFound("the kernel does not name this boot");
  std::ifstream file(path);
  if (!file) return NotFound("no " + path);
  std::stringstream all;
  all << file.rdbuf();
  const std::string text = all.str(), identity = Identity(boot_id, topology);
  if (text.compare(0, identity.size(), identity) != 0) return NotFound(path + " is of another boot or other GPUs");
  std::vector<PairFailure> failures;
  std::istringstream lines(text.substr(identity.size()));
  bool complete = false;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind;
    PairFailure failure;
    words >> kind;
    if (kind == "end") {
      complete = true;
      break;
    }
    if (kind != "failed" || !(words >> failure.from >> failure.to)) return NotFound(path + " is malformed");
    std::getline(words >> std::ws, failure.reason);
    failures.push_back(std::move(failure));
  }
  if (!complete) return NotFound(path + " is cut off");
  return failures;
}

Status SaveProbe(const std::string& path, const std::string& boot_id, const Topology& topology,
                 const std::vector<PairFailure>& failures) {
  if (boot_id.empty()) return Status::Ok();
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::string fresh = path + ".new";
  {
    std::ofstream file(fresh, std::ios::trunc);
    file << Identity(boot_id, topology);
    for (const PairFailure& failure : failures) {
      std::string reason = failure.reason;
      for (char& c : reason) c = c == '\n' ? ' ' : c;
      file << "failed " << failure.from << " " << failure.to << " " << reason << "\n";
    }
    file << "end\n";
    if (!file.flush()) return Unavailable("cannot write " + fresh);
  }
  std::filesystem::rename(fresh, path, error);
  if (error) return SystemError("rename " + fresh, error.value());
  return Status::Ok();
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
