#include "tests/conformance/launcher.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <vector>

#include "tests/conformance/daemon_process.h"
#include "tests/conformance/layout.h"
#include "tests/conformance/stress.h"
#include "tests/conformance/worker.h"

namespace tandem::conformance {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kStartMs = 120000, kCaseMs = 120000, kStressMs = 600000;
constexpr size_t kArenaGranule = 2 << 20;
constexpr int kRefusals = 12;  // of an algorithm that has never run: then it is asked for no more

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string RandomKey() {
  unsigned char bytes[16] = {};
  if (::getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) return {};
  std::string key;
  for (unsigned char byte : bytes) {
    key += "0123456789abcdef"[byte >> 4];
    key += "0123456789abcdef"[byte & 15];
  }
  return key;
}

class Launcher {
 public:
  explicit Launcher(const Options& options) : options_(options), start_(Clock::now()) {}

  int Run() {
    for (size_t i = 0; i < options_.worlds.size(); ++i) {
      // What is left of the time is shared out among the worlds to come.
      allowed_ = (options_.time_limit - spent_) / static_cast<double>(options_.worlds.size() - i);
      Status status = RunWorld(options_.worlds[i]);
      workers_.clear();
      if (status.ok()) continue;
      ++failed_;
      failures_.push_back("W" + std::to_string(options_.worlds[i]) + ": " + status.ToString());
      std::printf("Bail out! W%d: %s\n", options_.worlds[i], status.ToString().c_str());
      if (daemon_ != nullptr) std::printf("%s", daemon_->LogTail().c_str());
      daemon_.reset();  // the next world gets another
    }
    return Summarise();
  }

 private:
  static std::string RowOf(const Case& test) {
    const OpRequest& request = test.requests[0];
    return std::string(OpName(request.op)) + "/" + std::string(AlgorithmName(request.algorithm));
  }
  bool NeverRuns(const Case& test) {
    auto& row = table_[RowOf(test)];
    return row[0] == 0 && row[2] == 0 && row[1] >= kRefusals;
  }

  // Whether this world, whose cases began at `start`, has had its share.
  bool OutOfTime(Clock::time_point start) const {
    return options_.time_limit > 0 && SecondsSince(start) > allowed_;
  }

  std::vector<size_t> Select(const std::vector<Case>& matrix, int world) const {
    std::vector<size_t> selected;
    const std::regex filter(options_.filter);
    for (size_t i = 0; i < matrix.size(); ++i) {
      if (!options_.heavy && matrix[i].heavy) continue;
      if (!options_.filter.empty() && !std::regex_search(matrix[i].name, filter)) continue;
      selected.push_back(i);
    }
    // In an order of the seed's, so that a run cut short has seen some of everything.
    Draw draw(Mix(options_.seed, static_cast<uint64_t>(world) + 500));
    for (size_t i = selected.size(); i > 1; --i) {
      std::swap(selected[i - 1], selected[draw.Next() % i]);
    }
    if (options_.sample > 0 && selected.size() > static_cast<size_t>(options_.sample)) {
      selected.resize(static_cast<size_t>(options_.sample));
    }
    return selected;
  }

  Status RunWorld(int world) {
    const std::vector<Case> matrix = MakeMatrix(world, options_.seed);
    const std::vector<size_t> selected = Select(matrix, world);
    if (options_.list) {
      for (size_t index : selected) std::printf("W%d %s\n", world, matrix[index].name.c_str());
      return Status::Ok();
    }
    Options own = options_;
    own.worlds = {world};
    TANDEM_ASSIGN_OR_RETURN(ArenaBytes arenas, StressBytes(world));
    for (size_t index : selected) {
      if (options_.stress > 0) break;
      for (int rank = 0; rank < world; ++rank) {
        TANDEM_ASSIGN_OR_RETURN(Layout layout, MakeLayout(matrix[index], rank));
        arenas.own = std::max(arenas.own, layout.own_bytes);
        arenas.symmetric = std::max(arenas.symmetric, layout.symmetric_bytes);
      }
    }
    const auto round = [](size_t bytes) { return (bytes / kArenaGranule + 1) * kArenaGranule; };
    own.own_bytes = round(arenas.own);
    own.symmetric_bytes = round(arenas.symmetric);
    TANDEM_RETURN_IF_ERROR(StartWorkers(&own, world));
    if (options_.stress > 0) {
      TANDEM_RETURN_IF_ERROR(RunStressOf(world));
    } else {
      std::printf("# W%d: %zu of %zu cases, seed %llu\n", world, selected.size(), matrix.size(),
                  static_cast<unsigned long long>(options_.seed));
      const int failed_before = failed_;
      const auto start = Clock::now();
      for (size_t index : selected) {
        if (OutOfTime(start)) {
          ++worlds_cut_;
          std::printf("# W%d: out of time\n", world);
          break;
        }
        if (NeverRuns(matrix[index])) continue;
        TANDEM_RETURN_IF_ERROR(RunCase(matrix[index], index, world));
        if (failed_ - failed_before >= options_.max_failures) return Internal("too many failures");
      }
      spent_ += SecondsSince(start);
    }
    return TellAll({{"end", true}}, kCaseMs, nullptr);
  }

  Status StartWorkers(Options* own, int world) {
    if (options_.runtime_dir.empty()) {
      if (daemon_ == nullptr) {
        const int gpus = *std::max_element(options_.worlds.begin(), options_.worlds.end());
        TANDEM_ASSIGN_OR_RETURN(daemon_, DaemonProcess::Start(options_, gpus));
      }
      own->runtime_dir = daemon_->runtime_dir();
    }
    own->job_key = RandomKey();
    if (own->job_key.empty()) return Internal("the system gives no random bytes");
    for (int rank = 0; rank < world; ++rank) {
      TANDEM_ASSIGN_OR_RETURN(auto worker, Worker::Start(*own, world, rank));
      workers_.push_back(std::move(worker));
    }
    return HearAll(kStartMs, nullptr);
  }

  Status TellAll(const json& line, int timeout_ms, std::vector<json>* replies) {
    for (auto& worker : workers_) (void)worker->Tell(line);  // one that has ended is heard of below
    return HearAll(timeout_ms, replies);
  }

  // One line from each rank. Without `replies`, a failed one is an error.
  Status HearAll(int timeout_ms, std::vector<json>* replies) {
    Status first;
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      Result<json> reply = workers_[rank]->Hear(timeout_ms);
      Status status = reply.status();
      if (reply.ok() && replies == nullptr && (*reply)["status"] == "failed") {
        status = Internal((*reply)["message"].get<std::string>());
      }
      if (replies != nullptr && reply.ok()) replies->push_back(*reply);
      if (first.ok()) first = status.WithContext("rank " + std::to_string(rank));
    }
    return first;
  }

  Status RunCase(const Case& test, size_t index, int world) {
    std::vector<json> replies;
    const auto start = Clock::now();
    TANDEM_RETURN_IF_ERROR(TellAll({{"case", index}}, kCaseMs, &replies).WithContext(test.name));
    ++run_;
    std::string wrong, refusal;
    bool fatal = false;
    size_t refused = 0;
    for (size_t rank = 0; rank < replies.size(); ++rank) {
      const json& reply = replies[rank];
      const std::string status = reply["status"];
      if (status == "failed") {
        wrong += (wrong.empty() ? "" : "; ") + ("rank " + std::to_string(rank)) + ": " +
                 reply["message"].get<std::string>();
        fatal |= reply.value("fatal", false);
      }
      if (status == "refused") {
        ++refused;
        refusal = reply["message"];
      }
    }
    if (wrong.empty() && refused != 0 && refused != replies.size()) wrong = "refused on some ranks only: " + refusal;
    if (wrong.empty() && refused == 0) wrong = CompareRanks(test, replies);
    auto& row = table_[RowOf(test)];
    const std::string name = "W" + std::to_string(world) + " " + test.name;
    if (wrong.empty()) {
      ++row[refused != 0 ? 1 : 0];
      refused_ += refused != 0 ? 1 : 0;
      if (!options_.quiet) {
        std::printf("ok %d - %s%s%s [%.0f ms]\n", run_, name.c_str(), refused ? " # SKIP refused: " : "", refusal.c_str(),
                    1e3 * SecondsSince(start));
      }
      return Status::Ok();
    }
    ++row[2];
    ++failed_;
    std::printf("not ok %d - %s\n#   %s\n#   again: --world %d --seed %llu --filter '%s'\n", run_, name.c_str(),
                wrong.c_str(), world, static_cast<unsigned long long>(options_.seed), EscapedName(test.name).c_str());
    std::fflush(stdout);
    failures_.push_back(name + ": " + wrong);
    return fatal ? Internal("the group serves no more") : Status::Ok();
  }

  static std::string EscapedName(const std::string& name) {
    std::string text = "^";
    for (char c : name) {
      if (std::string("[]()*+?.{}|^$\\").find(c) != std::string::npos) text += '\\';
      text += c;
    }
    return text + "$";
  }

  // What must be the same on all ranks, to the bit: bytes that moved, and sums of deterministic plans.
  static std::string CompareRanks(const Case& test, const std::vector<json>& replies) {
    for (size_t rank = 1; rank < replies.size(); ++rank) {
      if (replies[rank]["algorithm"] != replies[0]["algorithm"]) return "ranks run different algorithms";
      const bool same = OnlyMoves(test.requests[0].op) || replies[0].value("deterministic", false);
      if (same && replies[rank].value("hashes", json()) != replies[0].value("hashes", json())) {
        return "rank " + std::to_string(rank) + " holds other bytes than rank 0";
      }
    }
    return {};
  }

  Status RunStressOf(int world) {
    std::vector<json> replies;
    TANDEM_RETURN_IF_ERROR(TellAll({{"stress", options_.stress}}, kStressMs, &replies));
    ++run_;
    std::string wrong;
    for (size_t rank = 0; rank < replies.size(); ++rank) {
      if (replies[rank]["status"] == "ok") continue;
      wrong += "rank " + std::to_string(rank) + ": " + replies[rank]["message"].get<std::string>() + "; ";
    }
    if (!wrong.empty()) return Internal(wrong);
    const json& first = replies[0];
    ++table_["stress"][0];
    std::printf("ok %d - W%d stress: %d launches in %.1f s (%.0f a second), %d delays, %d checks\n", run_, world,
                first["launches"].get<int>(), first["seconds"].get<double>(),
                first["launches"].get<int>() / first["seconds"].get<double>(), first["delays"].get<int>(),
                first["checks"].get<int>());
    return Status::Ok();
  }

  int Summarise() {
    if (options_.list) return 0;
    std::printf("1..%d\n# %-44s %8s %8s %8s\n", run_, "operation/algorithm", "right", "refused", "wrong");
    json rows = json::object();
    for (const auto& [name, counts] : table_) {
      const auto at = [&counts = counts](int which) {
        const auto found = counts.find(which);
        return found == counts.end() ? 0 : found->second;
      };
      std::printf("# %-44s %8d %8d %8d\n", name.c_str(), at(0), at(1), at(2));
      rows[name] = {{"right", at(0)}, {"refused", at(1)}, {"wrong", at(2)}};
    }
    const double seconds = SecondsSince(start_);
    std::printf("# %d run, %d refused with a reason, %d wrong, seed %llu, %.1f s%s\n", run_, refused_, failed_,
                static_cast<unsigned long long>(options_.seed), seconds, worlds_cut_ ? " (cut short by the limit)" : "");
    if (!options_.json.empty()) {
      std::ofstream(options_.json) << json{{"run", run_}, {"refused", refused_}, {"wrong", failed_},
                                           {"seed", options_.seed}, {"worlds", options_.worlds}, {"seconds", seconds},
                                           {"cut_short", worlds_cut_ > 0}, {"table", rows}, {"failures", failures_}}
                                          .dump(1)
                                   << "\n";
    }
    return failed_ == 0 && run_ > 0 ? 0 : 1;
  }

  const Options& options_;
  const Clock::time_point start_;
  double allowed_ = 0, spent_ = 0;  // seconds for the cases of this world, and of all so far
  std::unique_ptr<DaemonProcess> daemon_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<std::string, std::map<int, int>> table_;  // by operation and algorithm: right, refused, wrong
  std::vector<std::string> failures_;
  int run_ = 0, refused_ = 0, failed_ = 0, worlds_cut_ = 0;
};

}  // namespace

int RunLauncher(const Options& options) { return Launcher(options).Run(); }

}  // namespace tandem::conformance
