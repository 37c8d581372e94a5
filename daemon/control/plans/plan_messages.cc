#include "daemon/control/plans/plan_messages.h"

#include <algorithm>
#include <variant>

#include "daemon/control/plans/family_messages.h"
#include "program/program_codec.h"

namespace tandem::daemon {

std::string CallName(const OpRequest& request, const std::string& key) {
  constexpr size_t kMaxKeyBytes = 40;
  std::string name(OpName(request.op));
  if (!request.operands.empty()) {
    const TensorSpec& spec = request.operands[0].spec;
    name += " " + std::string(DTypeName(spec.dtype)) + "[";
    for (size_t i = 0; i < spec.shape.size(); ++i)
      name += (i == 0 ? "" : ",") + std::to_string(spec.shape[i]);
    name += "]";
  }
  return name + " ('" + (key.size() > kMaxKeyBytes ? key.substr(0, kMaxKeyBytes) + "..." : key) + "')";
}

namespace {

// Plans below this enter their GPUs' queues before longer ones.
constexpr double kLatencyClassUs = 50;
constexpr uint64_t kLatencyClassBytes = 256 * 1024;

engine::v1::Command AddPlanCommand(const plan::OperationPlan& plan, const OpRequest& request, size_t rank,
                                   uint64_t group_id, const std::string& key) {
  engine::v1::Command command;
  engine::v1::AddPlan& add = *command.mutable_add_plan();
  add.set_group_id(group_id);
  plan::EncodeProgram(plan.programs[rank], add.mutable_program());
  for (int i = 0; i < static_cast<int>(request.operands.size()); ++i) {
    const Operand& operand = request.operands[static_cast<size_t>(i)];
    engine::v1::PlanSlot* slot = add.add_slots();
    Result<int64_t> span = BoundBytes(request, i);
    slot->set_span_bytes(span.ok() ? static_cast<uint64_t>(*span) : 0);
    slot->set_alignment(static_cast<uint32_t>(DTypeBytes(operand.spec.dtype)));
    slot->set_symmetric(operand.symmetric);
    slot->set_alias_of(operand.alias_of);
  }
  add.set_latency_class(plan.bytes_moved <= kLatencyClassBytes && plan.predicted_us <= kLatencyClassUs);
  add.set_predicted_us(plan.predicted_us);
  add.set_bytes_moved(plan.bytes_moved);
  add.set_op(static_cast<uint32_t>(plan.op));
  add.set_algorithm(static_cast<uint32_t>(plan.algorithm));
  add.set_name(CallName(request, key));
  return command;
}

}  // namespace

void FillPlanInfo(const plan::OperationPlan& from, v1::PlanInfo* info) {
  info->set_op(static_cast<uint32_t>(from.op));
  info->set_algorithm(static_cast<uint32_t>(from.algorithm));
  info->set_reason(from.reason);
  for (const plan::RefusedAlgorithm& other : from.refused) {
    v1::RefusedAlgorithm* refused = info->add_refused();
    refused->set_algorithm(static_cast<uint32_t>(other.algorithm));
    refused->set_reason(other.reason);
    refused->set_predicted_us(other.predicted_us);
    refused->set_measured_us(other.measured_us);
  }
  info->set_fused(from.fused);
  info->set_placed(static_cast<uint32_t>(from.placement));
  info->set_steps(from.steps);
  info->set_lanes(from.lanes);
  info->set_summary(from.summary);
  info->set_scale_mode(from.scale_mode);
  info->set_wire_type(from.wire_type);
  info->set_reduction_order(from.reduction_order);
  info->set_roundings(from.roundings);
  info->set_deterministic(from.deterministic);
  info->set_determinism(static_cast<uint32_t>(from.determinism));
  info->set_rounding(from.rounding);
  info->set_norm(from.norm);
  info->set_workspace_bytes(from.workspace_bytes);
  info->set_bulk_bytes(from.bulk_bytes);
  info->set_bytes_moved(from.bytes_moved);
  info->set_gathered_a_bytes(from.gathered_a_bytes);
  info->set_predicted_us(from.predicted_us);
  info->set_measured_us(from.measured_us);
  if (from.rows.max_rows > 0) FillRows(from.rows, info->mutable_rows());
  for (const std::string& warning : from.warnings) info->add_warnings(warning);
}

void FillOperands(const OpRequest& request, v1::PlanInfo* info) {
  for (int i = 0; i < static_cast<int>(request.operands.size()); ++i) {
    const Operand& operand = request.operands[static_cast<size_t>(i)];
    v1::OperandInfo* to = info->add_operands();
    to->set_role(static_cast<uint32_t>(operand.role));
    Result<int64_t> span = BoundBytes(request, i);
    to->set_span_bytes(span.ok() ? static_cast<uint64_t>(*span) : 0);
    to->set_alignment(static_cast<uint32_t>(DTypeBytes(operand.spec.dtype)));
    to->set_symmetric(operand.symmetric);
  }
}

std::vector<engine::v1::Command> AddPlanCommands(const plan::OperationPlan& plan,
                                                 const std::vector<OpRequest>& requests, uint64_t group_id,
                                                 const std::string& key) {
  std::vector<engine::v1::Command> commands;
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    commands.push_back(AddPlanCommand(plan, requests[rank], rank, group_id, key));
  }
  return commands;
}

bool NeedsCommunicator(const std::vector<plan::Step>& steps) {
  return std::any_of(steps.begin(), steps.end(), [](const plan::Step& step) {
    const auto* collective = std::get_if<plan::CollectiveStep>(&step.work);
    return std::holds_alternative<plan::NcclStep>(step.work) ||
           (collective != nullptr && NeedsCommunicator(collective->expansion));
  });
}

}  // namespace tandem::daemon
