// Client placement: the entry rule, in place of an engine's start, and the form of a program that the ranks'
// own streams can run.
#include <algorithm>
#include <string>
#include <vector>

#include "program/step_fields.h"
#include "program/text.h"
#include "program/verifier/graph.h"

namespace tandem::plan {
namespace verify {

// Workspace needs no entry: its halves alternate, and every launch closes.
Status CheckEntries(const History& history, int period) {
  for (int n = 0; n < period && n < static_cast<int>(history.launches.size()); ++n) {
    const LaunchGraph& graph = *history.launches[n];
    const uint32_t base = history.base[n];
    for (const Access& access : graph.accesses) {
      const GraphEvent& event = graph.events[access.first];
      if (access.owner == event.rank || access.space == Space::kWorkspace) continue;
      if (history.Before(graph.begin[access.owner] + base, access.first + base)) continue;
      return Refuse("NO_ENTRY", Describe(graph.programs, event.rank, event.step, n) + " may touch " +
                                    PlaceName(access, 0) + " before that rank has begun the launch");
    }
  }
  return {};
}

namespace {

// The steps of `program`'s fused kernel of many rows; null: it has none.
const std::vector<Step>* FusedExpansion(const RankProgram& program) {
  for (const Step& step : program.steps) {
    const auto* collective = std::get_if<CollectiveStep>(&step.work);
    if (collective != nullptr && IsFusedKernel(*collective)) return &collective->expansion;
  }
  return nullptr;
}

bool Awaits(const std::vector<Step>& steps, int from_rank, int index) {
  return std::any_of(steps.begin(), steps.end(), [&](const Step& step) {
    const auto* wait = std::get_if<WaitStep>(&step.work);
    return wait != nullptr && wait->from_rank == from_rank && wait->index == index;
  });
}

}  // namespace

Status CheckZeroedWords(std::span<const RankProgram> programs) {
  for (const RankProgram& writer : programs) {
    const std::vector<Step>* steps = FusedExpansion(writer);
    if (steps == nullptr) continue;
    for (const Step& step : *steps) {
      const auto* signal = std::get_if<SignalStep>(&step.work);
      if (signal == nullptr || signal->to_rank == writer.rank || signal->to_rank >= programs.size()) continue;
      const std::vector<Step>* reader = FusedExpansion(programs[signal->to_rank]);
      if (reader != nullptr && Awaits(*reader, writer.rank, signal->index)) continue;
      return Refuse("UNAWAITED", Text("rank ", writer.rank, " writes word ", signal->index, " of rank ",
                                      static_cast<int>(signal->to_rank),
                                      ", which does not await it in the launch: the next launch may "
                                      "zero the word too early"));
    }
  }
  return {};
}

}  // namespace verify

namespace {

Status NotOneKernel(const RankProgram& program, size_t step, std::string_view why) {
  StatusDetail detail;
  detail.reason = "NOT_ONE_KERNEL";
  return Status(
      Code::kFailedPrecondition,
      Text(verify::Describe({&program, 1}, program.rank, static_cast<uint32_t>(step), -1), ": ", why),
      std::move(detail));
}

std::string WhyNotLocal(const View& view, int rank) {
  if (view.ref.rank != rank) return "touches a peer outside the kernel";
  // The caller's graph holds the step's addresses, and which half a launch has is known on the device alone.
  if (view.ref.space == Space::kWorkspace) return "has its data in a half of workspace, outside the kernel";
  return {};
}

// Why `step` is not work on the rank's own operands and bulk area alone; empty if it is.
std::string WhyNotLocal(const Step& step, int rank) {
  if (MeetsPeers(step)) return "meets a peer outside the kernel";
  const auto* matmul = std::get_if<MatmulStep>(&step.work);
  if (matmul != nullptr && matmul->has_chunk_signals) return "waits for the caller's words";
  std::string why;
  const auto look = [&](const char*, ViewUse, const View& view) {
    if (why.empty()) why = WhyNotLocal(view, rank);
    return Status::Ok();
  };
  (void)std::visit([&](const auto& work) { return ForEachView(look, work); }, step.work);
  return why;
}

}  // namespace

Status CheckOneKernel(std::span<const RankProgram> programs) {
  for (const RankProgram& program : programs) {
    int kernels = 0;
    for (size_t s = 0; s < program.steps.size(); ++s) {
      const Step& step = program.steps[s];
      if (auto* collective = std::get_if<CollectiveStep>(&step.work)) {
        // A fused kernel's blocks are not planned: tiles are.
        if (collective->blocks == 0 && collective->algorithm != Algorithm::kFused)
          return NotOneKernel(program, s, "no kernel can run this collective");
        if (++kernels > 1) return NotOneKernel(program, s, "a second kernel that meets peers");
        continue;
      }
      if (const std::string why = WhyNotLocal(step, program.rank); !why.empty())
        return NotOneKernel(program, s, why);
    }
    if (kernels == 0 && programs.size() > 1) {
      StatusDetail detail;
      detail.reason = "NOT_ONE_KERNEL";
      return Status(Code::kFailedPrecondition, Text("rank ", program.rank, ": no kernel meets the peers"),
                    std::move(detail));
    }
  }
  return {};
}

}  // namespace tandem::plan
