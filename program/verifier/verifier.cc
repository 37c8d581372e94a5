#include "program/verifier/verifier.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "program/step_fields.h"
#include "program/verifier/graph.h"

namespace tandem::plan {

Result<VerifyContext> ContextOf(std::span<const OpRequest> requests) {
  VerifyContext context;
  size_t slots = 0;
  for (const OpRequest& request : requests) slots = std::max(slots, request.operands.size());
  context.symmetric.assign(slots, true);
  context.alias.assign(slots, -1);
  for (const OpRequest& request : requests) {
    std::vector<uint64_t>& bytes = context.operand_bytes.emplace_back();
    for (size_t slot = 0; slot < request.operands.size(); ++slot) {
      const Operand& operand = request.operands[slot];
      TANDEM_ASSIGN_OR_RETURN(int64_t bound, BoundBytes(request, static_cast<int>(slot)));
      bytes.push_back(static_cast<uint64_t>(bound));
      if (!operand.symmetric) context.symmetric[slot] = false;
      if (operand.alias_of >= static_cast<int>(request.operands.size())) {
        return InvalidArgument("slot " + std::to_string(slot) + " is an alias of a slot that does not exist");
      }
      if (operand.alias_of >= 0) context.alias[slot] = operand.alias_of;
    }
  }
  const bool restartable = !requests.empty() && requests[0].restartable;
  if (restartable) context.read_only.assign(slots, true);
  for (const OpRequest& request : requests) {
    for (size_t slot = 0; restartable && slot < request.operands.size(); ++slot) {
      if (IsOutput(request.operands[slot].role)) context.read_only[slot] = false;
    }
  }
  return context;
}

namespace {

bool IsOwnProduct(const Step& step, int rank) {
  const auto* matmul = std::get_if<MatmulStep>(&step.work);
  if (matmul == nullptr) return false;
  bool own = true;
  (void)ForEachView(
      [&](const char*, ViewUse, const View& view) {
        own = own && view.ref.space == Space::kOperand && view.ref.rank == rank;
        return Status::Ok();
      },
      *matmul);
  return own;
}

// Without a step on any rank, or with a product of each rank's own operands alone, a launch takes no launch
// number and meets no peer. An engine's start, which all ranks must have reached, is all that they share.
bool MeetsNobody(std::span<const RankProgram> programs) {
  return std::all_of(programs.begin(), programs.end(), [](const RankProgram& program) {
    return program.steps.empty() ||
           (program.steps.size() == 1 && program.signal_count == 0 && program.workspace_bytes == 0 &&
            program.bulk_bytes == 0 && IsOwnProduct(program.steps[0], program.rank));
  });
}

// `meet`: the ranks meet in each launch, which closes then.
Status CheckHistory(std::vector<const verify::LaunchGraph*> launches, int period,
                    const verify::ChainTable& chains, const VerifyOptions& options, bool meet = true) {
  TANDEM_ASSIGN_OR_RETURN(verify::History history,
                          verify::OrderLaunches(std::move(launches), chains.size(), !options.in_client));
  if (meet) TANDEM_RETURN_IF_ERROR(verify::CheckClosed(history, period));
  if (options.in_client) TANDEM_RETURN_IF_ERROR(verify::CheckEntries(history, period));
  return verify::CheckRaces(history, period, options.alternate_parity);
}

Status CheckAlone(std::span<const RankProgram> programs, const VerifyOptions& options) {
  if (!options.in_client || programs.size() == 1) return Status::Ok();
  return verify::Refuse("NOT_CLOSED", "the programs meet no peer: only an engine's start lets ranks meet");
}

}  // namespace

Status VerifyPrograms(std::span<const RankProgram> programs, const VerifyContext& context,
                      const VerifyOptions& options) {
  TANDEM_RETURN_IF_ERROR(verify::CheckPrograms(programs, context));
  const bool meet = !MeetsNobody(programs);
  if (!meet) TANDEM_RETURN_IF_ERROR(CheckAlone(programs, options));
  if (options.in_client) TANDEM_RETURN_IF_ERROR(verify::CheckZeroedWords(programs));
  verify::ChainTable chains;
  TANDEM_ASSIGN_OR_RETURN(verify::LaunchGraph graph,
                          verify::ExpandLaunch(programs, context, options, chains));
  std::vector<const verify::LaunchGraph*> launches(std::max(options.launches, 1), &graph);
  return CheckHistory(std::move(launches), 1, chains, options, meet);
}

Status VerifyPair(std::span<const RankProgram> p, const VerifyContext& p_context,
                  std::span<const RankProgram> q, const VerifyContext& q_context,
                  const VerifyOptions& options) {
  if (p.size() != q.size()) return verify::Refuse("MALFORMED", "the two plans have different world sizes");
  TANDEM_RETURN_IF_ERROR(verify::CheckPrograms(p, p_context).WithContext("first plan"));
  TANDEM_RETURN_IF_ERROR(verify::CheckPrograms(q, q_context).WithContext("second plan"));
  if (MeetsNobody(p)) {
    TANDEM_RETURN_IF_ERROR(VerifyPrograms(p, p_context, options));
    return VerifyPrograms(q, q_context, options);
  }
  if (MeetsNobody(q)) {
    TANDEM_RETURN_IF_ERROR(VerifyPrograms(q, q_context, options));
    return VerifyPrograms(p, p_context, options);
  }
  verify::ChainTable chains;
  TANDEM_ASSIGN_OR_RETURN(verify::LaunchGraph p_graph, verify::ExpandLaunch(p, p_context, options, chains));
  TANDEM_ASSIGN_OR_RETURN(verify::LaunchGraph q_graph, verify::ExpandLaunch(q, q_context, options, chains));
  std::vector<const verify::LaunchGraph*> launches;
  for (int n = 0; n < std::max(options.launches, 4); ++n)
    launches.push_back(n % 2 == 0 ? &p_graph : &q_graph);
  return CheckHistory(std::move(launches), 2, chains, options);
}

}  // namespace tandem::plan
