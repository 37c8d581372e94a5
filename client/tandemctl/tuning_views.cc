#include "client/tandemctl/tuning_views.h"

#include <cstdio>

#include "client/tandemctl/table.h"
#include "client/tandemctl/tune_setup.h"

namespace tandem::ctl {
namespace {

std::string CandidateName(const admin::v1::TuningCandidate& candidate) {
  return TuneCandidate{static_cast<Algorithm>(candidate.algorithm()), candidate.steps(), candidate.lanes()}
      .Name();
}

std::string ShapeText(const admin::v1::TuningEntry& entry) {
  if (entry.shape_size() == 1) return Bytes(static_cast<uint64_t>(entry.shape(0)));
  std::string text;
  for (int64_t extent : entry.shape()) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text;
}

std::string What(const admin::v1::TuningEntry& entry) {
  std::string text = entry.types();
  for (const std::string& more : {entry.scales(), entry.traits()}) {
    if (!more.empty()) text += ", " + more;
  }
  return text;
}

std::string Times(double us, double best) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", best > 0 ? us / best : 0);
  return text;
}

}  // namespace

std::string TuningText(const admin::v1::ListTuningReply& reply) {
  Table table(
      {"id", "operation", "shape", "types", ">ranks", "GPU", "class", "fastest", ">time", "measured"});
  for (const auto& entry : reply.entries()) {
    const auto& best = entry.candidates(0);
    table.Add({entry.id(), std::string(OpName(static_cast<Op>(entry.op()))), ShapeText(entry), What(entry),
               std::to_string(entry.world_size()), entry.gpu(), entry.topology_class(), CandidateName(best),
               Micros(best.median_us()), entry.measured_at()});
  }
  std::string text = table.empty() ? "nothing has been measured (tandemctl tune)\n" : table.Text();
  for (const std::string& refused : reply.refused_files()) text += "not used: " + refused + "\n";
  return text + (reply.truncated() ? "(cut: one reply does not hold all of them)\n" : "");
}

std::string WantedName(const admin::v1::WantedTuning& wanted) {
  const auto& entry = wanted.entry();
  return std::string(OpName(static_cast<Op>(entry.op()))) + " " + ShapeText(entry) + ", " + What(entry) +
         ", " + std::to_string(entry.world_size()) + " ranks";
}

std::string WantedText(const admin::v1::ListTuningReply& reply) {
  Table table({">plans", "wanted"});
  for (const auto& wanted : reply.wanted()) table.Add({std::to_string(wanted.plans()), WantedName(wanted)});
  return table.empty() ? "no plan was made without a time\n" : table.Text();
}

std::string TuningEntryText(const admin::v1::TuningEntry& entry) {
  std::string text =
      std::string(OpName(static_cast<Op>(entry.op()))) + " " + ShapeText(entry) + ", " + What(entry);
  if (!entry.id().empty()) {
    text += "\n  entry     " + entry.id() + "\n  group     " + std::to_string(entry.world_size()) + " x " +
            entry.gpu() + ", " + entry.topology_class() + "\n  measured  " + entry.measured_at() +
            " by Tandem " + entry.version() + "\n  file      " + entry.source() + "\n";
  } else {
    text += ", " + std::to_string(entry.world_size()) + " ranks: not kept (--dry-run)\n";
  }
  double best = 0;
  for (const auto& candidate : entry.candidates()) {
    if (candidate.samples() > 0 && (best == 0 || candidate.median_us() < best)) best = candidate.median_us();
  }
  Table table({"algorithm", ">median", ">10 %", ">90 %", ">x best", ">rounds", "why not"});
  for (const auto& candidate : entry.candidates()) {
    if (candidate.samples() == 0) {
      table.Add({CandidateName(candidate), "-", "-", "-", "-", "-", candidate.refused()});
    } else {
      table.Add({CandidateName(candidate), Micros(candidate.median_us()), Micros(candidate.p10_us()),
                 Micros(candidate.p90_us()), Times(candidate.median_us(), best),
                 std::to_string(candidate.samples())});
    }
  }
  return text + "\n" + table.Text();
}

}  // namespace tandem::ctl
