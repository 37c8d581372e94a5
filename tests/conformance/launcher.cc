#include "tests/conformance/launcher.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <regex>
#include <vector>

#include "tests/conformance/layout.h"
#include "tests/conformance/rank_group.h"
#include "tests/conformance/report.h"
#include "tests/conformance/stress.h"

namespace tandem::conformance {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kStressMs = 600000, kStressLaunchMs = 2;  // and for each launch
constexpr int kStepsPerCase = 4;  // deadlines that a case may take: prepare, two launches, release
constexpr size_t kArenaGranule = 2 << 20;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The results that must be the same on all ranks, to the bit: bytes that moved, and sums of deterministic
// plans.
std::string CompareRanks(const Case& test, const std::vector<Result<json>>& replies) {
  const json& first = *replies[0];
  for (size_t rank = 1; rank < replies.size(); ++rank) {
    const json& reply = *replies[rank];
    if (reply["algorithm"] != first["algorithm"]) return "ranks run different algorithms";
    const bool same = OnlyMoves(test.requests[0].op) || first.value("deterministic", false);
    if (same && reply.value("hashes", json()) != first.value("hashes", json())) {
      return "rank " + std::to_string(rank) + " holds other bytes than rank 0";
    }
  }
  return {};
}

Verdict Judge(const Case& test, const std::vector<Result<json>>& replies) {
  Verdict verdict;
  size_t refused = 0;
  const auto fail = [&verdict](size_t rank, const std::string& message, std::string_view code) {
    verdict.wrong += (verdict.wrong.empty() ? "rank " : "; rank ") + std::to_string(rank) + ": " + message;
    if (verdict.code.empty()) verdict.code = code;
  };
  for (size_t rank = 0; rank < replies.size(); ++rank) {
    if (!replies[rank].ok()) {
      fail(rank, replies[rank].status().ToString(), CodeName(replies[rank].status().code()));
      verdict.broken = true;
      continue;
    }
    const json& reply = *replies[rank];
    const std::string status = reply["status"];
    if (status == "failed") {
      fail(rank, reply["message"], reply.value("code", "INTERNAL"));
      if (verdict.first_wrong.empty()) verdict.first_wrong = reply.value("first_wrong", "");
      verdict.broken |= reply.value("fatal", false);
    } else if (status == "refused") {
      ++refused;
      verdict.refusal = reply["message"];
    }
  }
  if (!verdict.wrong.empty()) return verdict;
  if (refused != 0 && refused != replies.size()) {
    verdict.wrong = "refused on some ranks only: " + verdict.refusal;
    verdict.broken = true;  // the others have launched without them
  } else if (refused == 0) {
    verdict.wrong = CompareRanks(test, replies);
  }
  if (!verdict.wrong.empty()) verdict.code = "MISMATCH";
  return verdict;
}

class Launcher {
 public:
  explicit Launcher(const Options& options)
      : options_(options), start_(Clock::now()), report_(options), group_(options) {}

  int Run() {
    if (Status status = ReadPlants(); !status.ok()) {
      std::fprintf(stderr, "tandem-conformance: %s\n", status.ToString().c_str());
      return 2;
    }
    for (size_t i = 0; i < options_.worlds.size(); ++i) {
      // The rest of the time is shared out among the worlds to come.
      allowed_ = (options_.time_limit - spent_) / static_cast<double>(options_.worlds.size() - i);
      Status status = RunWorld(options_.worlds[i]);
      if (status.ok()) continue;
      report_.Fail(options_.worlds[i], status.ToString());
      std::printf("%s", group_.DaemonLog().c_str());
      group_.Stop(true);  // the next world gets another daemon
    }
    return options_.list ? 0 : report_.Summarise(SecondsSince(start_));
  }

 private:
  // "3:exit": the third case that is run, and what befalls the last rank in it.
  Status ReadPlants() {
    for (const std::string& plant : options_.plant) {
      const size_t colon = plant.find(':');
      const int number = colon == std::string::npos ? 0 : std::atoi(plant.c_str());
      const std::string how = plant.substr(colon == std::string::npos ? 0 : colon + 1);
      if (number < 1 || (how != "wrong" && how != "exit" && how != "hang")) {
        return InvalidArgument("--plant takes NUMBER:wrong, NUMBER:exit or NUMBER:hang, not " + plant);
      }
      plants_[number] = how;
    }
    return Status::Ok();
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
    const size_t skipped = std::min(selected.size(), static_cast<size_t>(options_.skip));
    selected.erase(selected.begin(), selected.begin() + static_cast<ptrdiff_t>(skipped));
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
    TANDEM_ASSIGN_OR_RETURN(ArenaBytes arenas, StressBytes(world, options_.in_client()));
    for (size_t index : selected) {
      if (options_.stress > 0) break;
      for (int rank = 0; rank < world; ++rank) {
        TANDEM_ASSIGN_OR_RETURN(Layout layout, MakeLayout(matrix[index], rank));
        arenas.own = std::max(arenas.own, layout.own_bytes);
        arenas.symmetric = std::max(arenas.symmetric, layout.symmetric_bytes);
      }
    }
    const auto round = [](size_t bytes) { return (bytes / kArenaGranule + 1) * kArenaGranule; };
    TANDEM_RETURN_IF_ERROR(group_.Start(world, round(arenas.own), round(arenas.symmetric)));
    if (options_.stress > 0) {
      TANDEM_RETURN_IF_ERROR(RunStressOf(world));
      return group_.End();
    }
    std::printf("# W%d: %zu of %zu cases, seed %llu\n", world, selected.size(), matrix.size(),
                static_cast<unsigned long long>(options_.seed));
    report_.AddDrawn(selected.size());
    const auto start = Clock::now();
    Status status = RunCases(matrix, selected, world, start);
    spent_ += SecondsSince(start);
    TANDEM_RETURN_IF_ERROR(status);
    return group_.End();
  }

  Status RunCases(const std::vector<Case>& matrix, const std::vector<size_t>& selected, int world,
                  Clock::time_point start) {
    const int failed_before = report_.failed();
    for (size_t at = 0; at < selected.size(); ++at) {
      const size_t index = selected[at];
      if (OutOfTime(start)) {
        report_.AddCut(world);
        break;
      }
      if (report_.NeverRuns(matrix[index])) continue;
      if (RunCase(matrix[index], index, world, static_cast<size_t>(options_.skip) + at).broken) {
        report_.AddRestart();
        TANDEM_RETURN_IF_ERROR(
            group_.Restart().WithContext("the group's next incarnation after " + matrix[index].name));
      }
      if (report_.failed() - failed_before >= options_.max_failures) return Internal("too many failures");
    }
    return Status::Ok();
  }

  // `place`: of the case in the seed's order.
  Verdict RunCase(const Case& test, size_t index, int world, size_t place) {
    const auto start = Clock::now();
    const auto plant = plants_.find(report_.run() + 1);
    const std::vector<Result<json>> replies =
        group_.Ask({{"case", index}}, kStepsPerCase * options_.deadline * 1000,
                   plant == plants_.end() ? std::string() : plant->second);
    Verdict verdict = Judge(test, replies);
    report_.Add(world, test, verdict, 1e3 * SecondsSince(start), place);
    return verdict;
  }

  Status RunStressOf(int world) {
    const int64_t limit_ms = kStressMs + int64_t{kStressLaunchMs} * options_.stress;
    const std::vector<Result<json>> replies =
        group_.Ask({{"stress", options_.stress}}, static_cast<int>(std::min<int64_t>(limit_ms, INT_MAX)));
    std::string wrong;
    for (size_t rank = 0; rank < replies.size(); ++rank) {
      if (replies[rank].ok() && (*replies[rank])["status"] == "ok") continue;
      wrong += "rank " + std::to_string(rank) + ": " +
               (replies[rank].ok() ? (*replies[rank])["message"].get<std::string>()
                                   : replies[rank].status().ToString()) +
               "; ";
    }
    if (!wrong.empty()) return Internal(wrong);
    report_.AddStress(world, *replies[0]);
    return Status::Ok();
  }

  const Options& options_;
  const Clock::time_point start_;
  double allowed_ = 0, spent_ = 0;  // seconds for the cases of this world, and of all so far
  Report report_;
  RankGroup group_;
  std::map<int, std::string> plants_;  // by the case's number in the run
};

}  // namespace

int RunLauncher(const Options& options) { return Launcher(options).Run(); }

}  // namespace tandem::conformance
