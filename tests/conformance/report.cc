#include "tests/conformance/report.h"

#include <cctype>
#include <cstdio>
#include <fstream>

namespace tandem::conformance {
namespace {

using nlohmann::json;

constexpr int kRefusals = 12;   // of an algorithm that has never run: then it is asked for no more
constexpr size_t kBefore = 16;  // cases listed before one that broke the group
constexpr size_t kListed = 40;  // failing cases in the summary; the JSON has all

std::string RowOf(const Case& test) {
  const OpRequest& request = test.requests[0];
  return std::string(OpName(request.op)) + "/" + std::string(AlgorithmName(request.algorithm));
}

std::string EscapedName(const std::string& name) {
  std::string text = "^";
  for (char c : name) {
    if (std::string("[]()*+?.{}|^$\\").find(c) != std::string::npos) text += '\\';
    text += c;
  }
  return text + "$";
}

// "K is no multiple of # bytes": the reason, without the reasons of all algorithms that follow it in a
// refusal.
std::string ReasonOf(const std::string& refusal) {
  std::string reason = refusal.substr(0, refusal.find(" ("));
  const size_t what = reason.find(" cannot run by ");
  if (const size_t at = reason.find(": ", what); what != std::string::npos && at != std::string::npos) {
    reason.erase(0, at + 2);
  }
  std::string text;
  for (char c : reason) {
    const bool digit = c >= '0' && c <= '9';
    // A type's name keeps its digits.
    const bool of_name = !text.empty() && (std::isalnum(static_cast<unsigned char>(text.back())) != 0);
    if (digit && !of_name && (text.empty() || text.back() != '#')) {
      text += '#';
    } else if (!digit || of_name) {
      text += c;
    }
  }
  return text;
}

json OperandsOf(const OpRequest& request) {
  json operands = json::array();
  for (const Operand& operand : request.operands) {
    operands.push_back({{"role", RoleName(operand.role)},
                        {"dtype", DTypeName(operand.spec.dtype)},
                        {"shape", operand.spec.shape},
                        {"symmetric", operand.symmetric}});
  }
  return operands;
}

}  // namespace

bool Report::NeverRuns(const Case& test) const {
  const auto row = table_.find(RowOf(test));
  return row != table_.end() && row->second.right == 0 && row->second.wrong == 0 &&
         row->second.refused >= kRefusals;
}

json Report::TellBefore(int world, size_t place) const {
  json reported = json::array();
  const size_t first = before_.empty() ? place : before_.front().place;
  for (const Before& before : before_) {
    std::printf("#   before it, %zu: %s\n", before.place, before.name.c_str());
    reported.push_back({{"place", before.place}, {"case", before.name}});
  }
  const std::string filter = options_.filter.empty() ? "" : " --filter '" + options_.filter + "'";
  const std::string again = "--world " + std::to_string(world) + " --seed " + std::to_string(options_.seed) +
                            filter + (options_.heavy ? "" : " --no-heavy") +
                            (options_.captures ? "" : " --no-captures") +
                            (options_.families ? " --families" : "") + " --skip " + std::to_string(first) +
                            " --sample " + std::to_string(place - first + 1);
  std::printf("#   again with these: %s\n", again.c_str());
  return {{"cases", std::move(reported)}, {"again", again}};
}

void Report::Add(int world, const Case& test, const Verdict& verdict, double milliseconds, size_t place) {
  ++run_;
  Row& row = table_[RowOf(test)];
  const std::string name = "W" + std::to_string(world) + " " + test.name;
  if (!before_.empty() && before_.back().world != world) before_.clear();
  before_.push_back({world, place, test.name});
  if (before_.size() > kBefore + 1) before_.pop_front();
  if (verdict.wrong.empty()) {
    const bool refused = !verdict.refusal.empty();
    ++(refused ? row.refused : row.right);
    refused_ += refused ? 1 : 0;
    if (refused) ++row.refusals[ReasonOf(verdict.refusal)];
    if (!options_.quiet) {
      std::printf("ok %d - %s%s%s [%.0f ms]\n", run_, name.c_str(), refused ? " # SKIP refused: " : "",
                  verdict.refusal.c_str(), milliseconds);
    }
    return;
  }
  ++row.wrong;
  ++failed_;
  const std::string again = "--world " + std::to_string(world) + " --seed " + std::to_string(options_.seed) +
                            (options_.families ? " --families" : "") + " --filter '" +
                            EscapedName(test.name) + "'";
  std::printf("not ok %d - %s\n#   %s\n#   again: %s\n", run_, name.c_str(), verdict.wrong.c_str(),
              again.c_str());
  json before;
  if (verdict.broken) {
    before_.pop_back();  // itself
    before = TellBefore(world, place);
    before_.clear();
  }
  std::fflush(stdout);
  const OpRequest& request = test.requests[0];
  failures_.push_back({{"world", world},
                       {"case", test.name},
                       {"operation", OpName(request.op)},
                       {"algorithm", AlgorithmName(request.algorithm)},
                       {"operands", OperandsOf(request)},
                       {"code", verdict.code},
                       {"first_wrong", verdict.first_wrong},
                       {"broke_the_group", verdict.broken},
                       {"message", verdict.wrong},
                       {"again", again},
                       {"before", before}});
}

void Report::Fail(int world, const std::string& what) {
  ++failed_;
  std::printf("Bail out! W%d: %s\n", world, what.c_str());
  std::fflush(stdout);
  failures_.push_back({{"world", world}, {"message", what}});
}

void Report::AddStress(int world, const json& first) {
  ++run_;
  ++table_["stress"].right;
  const int launches = first["launches"];
  const double seconds = first["seconds"];
  std::printf(
      "ok %d - W%d stress: %d launches in %.1f s (%.0f a second), %d delays, %d checks, %d fused plans, "
      "%d families, %d renewals\n",
      run_, world, launches, seconds, launches / seconds, first["delays"].get<int>(),
      first["checks"].get<int>(), first["fused"].get<int>(), first["families"].get<int>(),
      first["renewals"].get<int>());
}

void Report::AddCut(int world) {
  ++cut_;
  std::printf("# W%d: out of time\n", world);
}

void Report::FailUnlessRun() {
  for (const std::string& name : options_.must_run) {
    const auto row = table_.find(name);
    if (row != table_.end() && row->second.right > 0) continue;
    const std::string why = row == table_.end()            ? "none was selected"
                            : row->second.refusals.empty() ? "all were wrong"
                                                           : row->second.refusals.begin()->first;
    Fail(options_.worlds.back(), "no case of " + name + " ran and was right: " + why);
  }
}

int Report::Summarise(double seconds) {
  FailUnlessRun();
  std::printf("1..%d\n", run_);
  for (size_t i = 0; i < failures_.size() && i < kListed; ++i) {
    const json& failure = failures_[i];
    if (i == 0) std::printf("# failing cases: code, first wrong element\n");
    const std::string first = failure.value("first_wrong", "");
    std::printf("#   W%d %s: %s%s%s\n", failure["world"].get<int>(),
                failure.value("case", "(no case)").c_str(),
                failure.value("code", failure["message"].get<std::string>()).c_str(),
                first.empty() ? "" : ", ", first.c_str());
  }
  std::printf("# %-44s %8s %8s %8s\n", "operation/algorithm", "right", "refused", "wrong");
  json rows = json::object();
  for (const auto& [name, row] : table_) {
    std::printf("# %-44s %8d %8d %8d\n", name.c_str(), row.right, row.refused, row.wrong);
    rows[name] = {
        {"right", row.right}, {"refused", row.refused}, {"wrong", row.wrong}, {"refusals", row.refusals}};
  }
  std::printf("# %d run, %d refused with a reason, %d wrong, %d groups anew, seed %llu, %.1f s%s\n", run_,
              refused_, failed_, restarts_, static_cast<unsigned long long>(options_.seed), seconds,
              cut_ ? " (cut short by the limit)" : "");
  if (!options_.json.empty()) {
    std::ofstream(options_.json) << json{{"drawn", drawn_},           {"run", run_},
                                         {"refused", refused_},       {"wrong", failed_},
                                         {"restarts", restarts_},     {"seed", options_.seed},
                                         {"worlds", options_.worlds}, {"seconds", seconds},
                                         {"cut_short", cut_ > 0},     {"table", rows},
                                         {"failures", failures_}}
                                        .dump(1)
                                 << "\n";
  }
  return failed_ == 0 && run_ > 0 ? 0 : 1;
}

}  // namespace tandem::conformance
