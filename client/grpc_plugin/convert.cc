#include "client/grpc_plugin/convert.h"

#include <sys/eventfd.h>

#include <array>
#include <cerrno>

#include "common/unique_fd.h"
#include "common/utf8.h"

namespace tandem::client {

Status FromProto(const v1::StatusDetail& detail) {
  if (detail.code() == 0) return Status::Ok();
  StatusDetail to{.reason = detail.reason(),
                  .who = detail.who(),
                  .field = detail.field(),
                  .limit = detail.limit(),
                  .usage = detail.usage(),
                  .ranks = {detail.ranks().begin(), detail.ranks().end()},
                  .pid = detail.pid()};
  if (detail.has_gpu()) to.gpu = detail.gpu();
  if (detail.has_started()) to.started = detail.started();
  return Status(static_cast<Code>(detail.code()), detail.message(), std::move(to));
}

Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context, const std::string& address) {
  if (status.ok()) return Status::Ok();
  const auto& trailers = context.GetServerTrailingMetadata();
  if (auto it = trailers.find("tandem-status-bin"); it != trailers.end()) {
    v1::StatusDetail detail;
    if (detail.ParseFromArray(it->second.data(), static_cast<int>(it->second.size())) && detail.code() != 0) {
      return FromProto(detail);
    }
  }
  Code code = static_cast<Code>(status.error_code());
  if (code == Code::kUnavailable) return DaemonLost(address);
  if (code == Code::kDeadlineExceeded) {
    return DeadlineExceeded("the daemon at " + address + " did not answer in time")
        .WithDetail({.reason = "DAEMON_SLOW"});
  }
  return Status(code, "the call to the daemon at " + address + " failed: " + status.error_message(),
                {.reason = "TRANSPORT"});
}

Status CheckGrpcsDescriptors() {
  constexpr size_t kNeeded = 8;
  std::array<UniqueFd, kNeeded> spare;
  for (UniqueFd& fd : spare) {
    fd.Reset(::eventfd(0, EFD_CLOEXEC));
    if (!fd.valid()) return SystemError("descriptors for calls to the daemon", errno);
  }
  return Status::Ok();
}

Status DaemonLost(const std::string& address) {
  // gRPC takes its own want of a descriptor for a daemon that has gone.
  if (const UniqueFd spare(::eventfd(0, EFD_CLOEXEC)); !spare.valid() && errno == EMFILE)
    return SystemError("a connection to the daemon at " + address, EMFILE);
  return Unavailable("the daemon at " + address + " is gone").WithDetail({.reason = "DAEMON_LOST"});
}

Status Restarting() { return Unavailable("tandemd is restarting").WithDetail({.reason = "RESTARTING"}); }

bool IsRestart(const Status& status) {
  const std::string& reason = status.detail().reason;
  if (status.code() == Code::kCancelled) return reason == "TRANSPORT";
  return status.code() == Code::kUnavailable && (reason == "DAEMON_LOST" || reason == "RESTARTING");
}

Status CheckText(const std::string& field, const std::string& text) {
  if (IsUtf8(text)) return Status::Ok();
  return InvalidArgument(field + " is not UTF-8").WithDetail({.reason = "BAD_FIELD", .field = field});
}

Status CheckTexts(const JoinOptions& options, const std::string& gpu_uuid) {
  TANDEM_RETURN_IF_ERROR(CheckText("name", options.name));
  TANDEM_RETURN_IF_ERROR(CheckText("gpu_uuid", gpu_uuid));
  for (const auto& [name, value] : options.options) {
    TANDEM_RETURN_IF_ERROR(CheckText("options", name));
    TANDEM_RETURN_IF_ERROR(CheckText("options[" + name + "]", value));
  }
  return Status::Ok();
}

void ToProto(const TensorSpec& spec, v1::TensorSpec* proto) {
  proto->set_dtype(static_cast<uint32_t>(spec.dtype));
  proto->mutable_shape()->Add(spec.shape.begin(), spec.shape.end());
  proto->mutable_strides()->Add(spec.strides.begin(), spec.strides.end());
}

void ToProto(const OpRequest& request, v1::OpRequest* proto) {
  proto->set_op(static_cast<uint32_t>(request.op));
  for (const Operand& operand : request.operands) {
    v1::Operand* to = proto->add_operands();
    to->set_role(static_cast<uint32_t>(operand.role));
    ToProto(operand.spec, to->mutable_spec());
    to->set_symmetric(operand.symmetric);
    to->set_alias_of(operand.alias_of);
  }
  proto->set_dim(request.dim);
  proto->set_reduce_op(static_cast<uint32_t>(request.reduce_op));
  proto->set_root(request.root);
  proto->set_wire(static_cast<uint32_t>(request.wire));
  proto->set_fast_accumulation(request.fast_accumulation);
  proto->set_low_contention(request.low_contention);
  proto->set_chunk_pivot(request.chunk_pivot);
  for (const Transfer& transfer : request.transfers) {
    v1::Transfer* to = proto->add_transfers();
    to->set_send(transfer.send);
    to->set_peer(transfer.peer);
    to->set_slot(transfer.slot);
  }
  proto->set_algorithm(static_cast<uint32_t>(request.algorithm));
  proto->set_steps(request.steps);
  proto->set_lanes(request.lanes);
  proto->set_on_unfused(static_cast<uint32_t>(request.on_unfused));
  proto->set_restartable(request.restartable);
  proto->set_placement(static_cast<uint32_t>(request.placement));
  proto->set_norm_epsilon(request.norm_epsilon);
  proto->set_max_rows(request.max_rows);
  proto->set_determinism(static_cast<uint32_t>(request.determinism));
  proto->set_rounding(static_cast<uint32_t>(request.rounding));
}

void ToProto(const MeasuredTime& time, v1::MeasuredTime* proto) {
  proto->set_algorithm(static_cast<uint32_t>(time.algorithm));
  proto->set_samples(time.samples);
  proto->set_median_us(time.median_us);
  proto->set_p10_us(time.p10_us);
  proto->set_p90_us(time.p90_us);
}

void ToProto(const Status& status, v1::StatusDetail* proto) {
  proto->set_code(static_cast<int>(status.code()));
  proto->set_message(AsUtf8(status.message()));
  proto->set_reason(status.detail().reason);
  proto->set_field(status.detail().field);
}

PlanInfo FromProto(const v1::PlanInfo& proto) {
  PlanInfo info;
  info.plan_id = proto.plan_id();
  info.key = proto.key();
  info.op = static_cast<Op>(proto.op());
  info.algorithm = static_cast<Algorithm>(proto.algorithm());
  info.reason = proto.reason();
  for (const v1::RefusedAlgorithm& refused : proto.refused()) {
    info.refused.push_back(
        {static_cast<Algorithm>(refused.algorithm()), refused.reason(), refused.predicted_us()});
  }
  info.fused = proto.fused();
  info.steps = proto.steps();
  info.lanes = proto.lanes();
  info.summary = proto.summary();
  info.scale_mode = proto.scale_mode();
  info.wire_type = proto.wire_type();
  info.reduction_order = proto.reduction_order();
  info.placement = proto.placement();
  info.placed = static_cast<PlanPlacement>(proto.placed());
  info.roundings = proto.roundings();
  info.deterministic = proto.deterministic();
  info.determinism = static_cast<Determinism>(proto.determinism());
  info.rounding = proto.rounding();
  info.norm = proto.norm();
  info.workspace_bytes = proto.workspace_bytes();
  info.bulk_bytes = proto.bulk_bytes();
  info.bytes_moved = proto.bytes_moved();
  info.gathered_a_bytes = proto.gathered_a_bytes();
  info.group_workspace_bytes = proto.group_workspace_bytes();
  info.unshared_workspace_bytes = proto.unshared_workspace_bytes();
  info.predicted_us = proto.predicted_us();
  info.warnings.assign(proto.warnings().begin(), proto.warnings().end());
  for (const v1::OperandInfo& operand : proto.operands()) info.slot_bytes.push_back(operand.span_bytes());
  if (!proto.has_rows()) return info;
  info.max_rows = proto.rows().max_rows();
  info.row_unit = proto.rows().unit();
  for (const v1::RowRange& range : proto.rows().ranges()) {
    info.rows.push_back(
        {range.last(), static_cast<Algorithm>(range.algorithm()), range.reason(), range.predicted_us()});
  }
  return info;
}

ControlEvent FromProto(const v1::Event& proto) {
  ControlEvent event;
  event.event.group_id = proto.group_id();
  event.event.rank = proto.rank();
  event.event.status = FromProto(proto.status());
  event.generation = proto.generation();
  event.request = proto.request();
  switch (proto.kind()) {
    case v1::Event::RANK_LOST: event.event.kind = ClientEvent::Kind::kRankLost; break;
    case v1::Event::GROUP_BROKEN: event.event.kind = ClientEvent::Kind::kGroupBroken; break;
    case v1::Event::RANK_LEFT: event.event.kind = ClientEvent::Kind::kRankLeft; break;
    case v1::Event::ENGINE_RESTARTED: event.event.kind = ClientEvent::Kind::kEngineRestarted; break;
    case v1::Event::PLAN_WARNING: event.event.kind = ClientEvent::Kind::kPlanWarning; break;
    case v1::Event::GROUP_STALLED: event.event.kind = ClientEvent::Kind::kGroupStalled; break;
    case v1::Event::SUSPEND_REQUESTED: event.event.kind = ClientEvent::Kind::kSuspendRequested; break;
    case v1::Event::RESUME_REQUESTED: event.event.kind = ClientEvent::Kind::kResumeRequested; break;
    case v1::Event::DRAINING: event.event.kind = ClientEvent::Kind::kDraining; break;
    default: event.event.kind = ClientEvent::Kind::kLate; break;
  }
  // A broken group needs a reason that is not OK.
  if (event.event.kind == ClientEvent::Kind::kGroupBroken && event.event.status.ok()) {
    event.event.status = Unavailable("the group is broken");
  }
  return event;
}

}  // namespace tandem::client
