#include "daemon/control/base/validate.h"

#include <algorithm>
#include <string_view>

#include "common/op_tables.h"
#include "common/utf8.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {
namespace {

constexpr size_t kMaxReason = 4096;
constexpr int kMaxTimes = 16;  // of algorithms, which are fewer

Status BadField(const std::string& field, const std::string& what) {
  return InvalidArgument(field + " " + what).WithDetail({.reason = "BAD_FIELD", .who = {}, .field = field});
}

Status CheckText(const std::string& field, std::string_view text, size_t min, size_t max) {
  if (text.size() < min || text.size() > max) {
    return BadField(field, "must have " + std::to_string(min) + " to " + std::to_string(max) +
                               " bytes, not " + std::to_string(text.size()));
  }
  // Names end in logs and tables.
  if (HasControlCharacters(text)) return BadField(field, "must not contain control characters");
  return Status::Ok();
}

// A value of the enumeration from its number in a message.
template <typename Enum>
Status ReadEnum(const std::string& field, uint32_t number, Enum* value) {
  const NamedValue<Enum>* found = FindValue<Enum>(number);
  if (found == nullptr) return BadField(field, "has no value " + std::to_string(number));
  *value = found->value;
  return Status::Ok();
}

}  // namespace

Status ValidateAttach(const v1::AttachRequest& request) {
  TANDEM_RETURN_IF_ERROR(CheckText("name", request.name(), 0, 128));
  TANDEM_RETURN_IF_ERROR(CheckText("client_version", request.client_version(), 0, 64));
  TANDEM_RETURN_IF_ERROR(CheckText("mps_pipe_directory", request.mps_pipe_directory(), 0, 4096));
  if (request.protocol_min() > request.protocol_max())
    return BadField("protocol_min", "is above protocol_max");
  return Status::Ok();
}

Status ValidateJoin(const v1::JoinGroupRequest& request) {
  if (request.job_key().size() < 16 || request.job_key().size() > 256) {
    return BadField("job_key", "must have 16 to 256 bytes, not " + std::to_string(request.job_key().size()));
  }
  TANDEM_RETURN_IF_ERROR(CheckText("name", request.name(), 1, 128));
  TANDEM_RETURN_IF_ERROR(CheckText("gpu_uuid", request.gpu_uuid(), 1, 128));
  TANDEM_RETURN_IF_ERROR(CheckText("host_id", request.host_id(), 0, 256));
  if (FindValue<OnSlowPlacement>(request.on_slow_placement()) == nullptr) {
    return BadField("on_slow_placement", "is none of " + ListedNames<OnSlowPlacement>());
  }
  if (request.options_size() > 64) return BadField("options", "has more than 64 entries");
  for (const auto& [key, value] : request.options()) {
    TANDEM_RETURN_IF_ERROR(CheckText("options", key, 1, 128));
    TANDEM_RETURN_IF_ERROR(CheckText("options[" + key + "]", value, 0, 1024));
  }
  return Status::Ok();
}

Status ValidateRegister(const v1::RegisterTensorRequest& request) {
  TANDEM_RETURN_IF_ERROR(CheckText("gpu_uuid", request.gpu_uuid(), 1, 128));
  if (request.bytes() == 0 || request.bytes() > static_cast<uint64_t>(kMaxTensorBytes)) {
    return BadField("bytes", "must be 1 to " + std::to_string(kMaxTensorBytes) + ", not " +
                                 std::to_string(request.bytes()));
  }
  if (!request.ipc_handle().empty()) {
    if (request.ipc_handle().size() != 64) return BadField("ipc_handle", "must have 64 bytes");
    if (request.chunk_bytes_size() != 0) return BadField("chunk_bytes", "must be empty with an IPC handle");
    if (request.offset() > static_cast<uint64_t>(kMaxTensorBytes)) return BadField("offset", "is too large");
    return Status::Ok();
  }
  if (request.chunk_bytes_size() == 0) return BadField("chunk_bytes", "must name each descriptor's bytes");
  uint64_t sum = 0;
  for (uint64_t bytes : request.chunk_bytes()) {
    if (bytes == 0 || bytes > static_cast<uint64_t>(kMaxTensorBytes)) {
      return BadField("chunk_bytes", "has a chunk of " + std::to_string(bytes) + " bytes");
    }
    sum += bytes;
    if (sum > 2 * static_cast<uint64_t>(kMaxTensorBytes)) return BadField("chunk_bytes", "sums to too much");
  }
  if (request.offset() >= request.chunk_bytes(0)) {
    return BadField("offset", "is " + std::to_string(request.offset()) + ", beyond the first descriptor's " +
                                  std::to_string(request.chunk_bytes(0)) + " bytes");
  }
  if (sum - request.offset() < request.bytes()) {
    return BadField("chunk_bytes", "sums to " + std::to_string(sum) + ", less than offset + bytes, " +
                                       std::to_string(request.offset()) + " + " +
                                       std::to_string(request.bytes()));
  }
  return Status::Ok();
}

Status ValidateOpenChannel(const v1::OpenChannelRequest& request) {
  TANDEM_RETURN_IF_ERROR(CheckText("gpu_uuid", request.gpu_uuid(), 1, 128));
  const uint32_t entries = request.entries();
  if (entries != 0 &&
      (entries < kMinRequestedEntries || entries > kMaxRequestedEntries || (entries & (entries - 1)))) {
    return BadField("entries", "must be a power of two from " + std::to_string(kMinRequestedEntries) +
                                   " to " + std::to_string(kMaxRequestedEntries) + ", not " +
                                   std::to_string(entries));
  }
  return Status::Ok();
}

Status ValidateLaunch(const v1::LaunchRequest& request) {
  if (request.bindings_size() > kMaxOperands) {
    return BadField("bindings", "has more than " + std::to_string(kMaxOperands) + " entries");
  }
  if (request.tag().size() > 4096) return BadField("tag", "has more than 4096 bytes");
  return Status::Ok();
}

Status ValidatePrepare(const v1::PrepareRequest& request) {
  TANDEM_RETURN_IF_ERROR(CheckText("key", request.key(), 1, 256));
  if (!request.has_request()) return BadField("request", "is missing");
  if (request.times_size() > kMaxTimes) {
    return BadField("times", "has more than " + std::to_string(kMaxTimes) + " entries");
  }
  if (request.cannot_measure().size() > kMaxReason) {
    return BadField("cannot_measure", "has more than " + std::to_string(kMaxReason) + " bytes");
  }
  return Status::Ok();
}

Status ValidatePreview(const v1::PreviewRequest& request) {
  if (!request.has_request()) return BadField("request", "is missing");
  if (request.request().op() == static_cast<uint32_t>(Op::kSendReceive))
    return BadField("op", "is send_receive, whose plan needs the transfers of the other ranks");
  return Status::Ok();
}

Result<TensorSpec> ParseTensorSpec(const v1::TensorSpec& spec, const std::string& field) {
  TensorSpec result;
  TANDEM_RETURN_IF_ERROR(ReadEnum(field + ".dtype", spec.dtype(), &result.dtype));
  if (spec.shape_size() > kMaxDimensions) {
    return BadField(field + ".shape", "has " + std::to_string(spec.shape_size()) + " dimensions; at most " +
                                          std::to_string(kMaxDimensions) + " are allowed");
  }
  result.shape.assign(spec.shape().begin(), spec.shape().end());
  result.strides.assign(spec.strides().begin(), spec.strides().end());
  if (!result.strides.empty() && result.strides.size() != result.shape.size()) {
    return BadField(field + ".strides", "has " + std::to_string(result.strides.size()) + " entries for " +
                                            std::to_string(result.shape.size()) + " dimensions");
  }
  for (int64_t stride : result.strides) {
    if (stride < 0) return BadField(field + ".strides", "must not be negative");
  }
  Result<int64_t> elements = ElementCount(result.shape);
  if (!elements.ok()) return BadField(field + ".shape", "is wrong: " + elements.status().message());
  Result<int64_t> bytes = SpanBytes(result);
  if (!bytes.ok()) return BadField(field, "is wrong: " + bytes.status().message());
  if (*bytes > kMaxTensorBytes) {
    return BadField(field + ".shape", "needs " + std::to_string(*bytes) + " bytes; at most " +
                                          std::to_string(kMaxTensorBytes) + " are possible");
  }
  return result;
}

Result<uint64_t> ParseEmpty(const v1::EmptyRequest& request) {
  TANDEM_RETURN_IF_ERROR(CheckText("gpu_uuid", request.gpu_uuid(), 1, 128));
  TANDEM_RETURN_IF_ERROR(CheckText("persistent_name", request.persistent_name(), 0, 256));
  TANDEM_ASSIGN_OR_RETURN(TensorSpec spec, ParseTensorSpec(request.spec(), "spec"));
  TANDEM_ASSIGN_OR_RETURN(int64_t bytes, SpanBytes(spec));
  return static_cast<uint64_t>(std::max<int64_t>(bytes, 1));
}

Result<OpRequest> ParseOpRequest(const v1::OpRequest& proto, int world_size) {
  OpRequest request;
  TANDEM_RETURN_IF_ERROR(ReadEnum("op", proto.op(), &request.op));
  TANDEM_RETURN_IF_ERROR(ReadEnum("reduce_op", proto.reduce_op(), &request.reduce_op));
  TANDEM_RETURN_IF_ERROR(ReadEnum("wire", proto.wire(), &request.wire));
  TANDEM_RETURN_IF_ERROR(ReadEnum("algorithm", proto.algorithm(), &request.algorithm));
  TANDEM_RETURN_IF_ERROR(ReadEnum("on_unfused", proto.on_unfused(), &request.on_unfused));
  TANDEM_RETURN_IF_ERROR(ReadEnum("placement", proto.placement(), &request.placement));
  TANDEM_RETURN_IF_ERROR(ReadEnum("determinism", proto.determinism(), &request.determinism));
  TANDEM_RETURN_IF_ERROR(ReadEnum("rounding", proto.rounding(), &request.rounding));
  if (proto.operands_size() > kMaxOperands) {
    return BadField("operands", "has more than " + std::to_string(kMaxOperands) + " entries");
  }
  if (proto.transfers_size() > kMaxTransfers) {
    return BadField("transfers", "has more than " + std::to_string(kMaxTransfers) + " entries");
  }
  if (proto.dim() < -kMaxDimensions || proto.dim() >= kMaxDimensions)
    return BadField("dim", "is out of range");
  if (proto.root() < 0 || proto.root() >= world_size) {
    return BadField("root", "must be a rank of the group, 0 to " + std::to_string(world_size - 1));
  }
  if (proto.steps() < 0 || proto.steps() > 1024) return BadField("steps", "must be 0 to 1024");
  if (proto.lanes() < 0 || proto.lanes() > 8) return BadField("lanes", "must be 0 to 8");
  if (proto.chunk_pivot() < 0) return BadField("chunk_pivot", "must not be negative");
  for (int i = 0; i < proto.operands_size(); ++i) {
    const v1::Operand& from = proto.operands(i);
    const std::string field = "operands[" + std::to_string(i) + "]";
    Operand operand;
    TANDEM_RETURN_IF_ERROR(ReadEnum(field + ".role", from.role(), &operand.role));
    TANDEM_ASSIGN_OR_RETURN(operand.spec, ParseTensorSpec(from.spec(), field));
    operand.symmetric = from.symmetric();
    operand.alias_of = from.alias_of();
    if (operand.alias_of < -1 || operand.alias_of >= i) {
      return BadField(field + ".alias_of",
                      "must be -1 or an earlier slot, not " + std::to_string(operand.alias_of));
    }
    request.operands.push_back(std::move(operand));
  }
  for (int i = 0; i < proto.transfers_size(); ++i) {
    const v1::Transfer& from = proto.transfers(i);
    const std::string field = "transfers[" + std::to_string(i) + "]";
    if (from.peer() < 0 || from.peer() >= world_size)
      return BadField(field + ".peer", "is not a rank of the group");
    if (from.slot() < 0 || from.slot() >= proto.operands_size())
      return BadField(field + ".slot", "is not a slot");
    request.transfers.push_back({from.send(), from.peer(), from.slot()});
  }
  request.dim = proto.dim();
  request.root = proto.root();
  request.fast_accumulation = proto.fast_accumulation();
  request.low_contention = proto.low_contention();
  request.chunk_pivot = proto.chunk_pivot();
  request.steps = proto.steps();
  request.lanes = proto.lanes();
  request.restartable = proto.restartable();
  request.norm_epsilon = proto.norm_epsilon();
  request.max_rows = proto.max_rows();
  return request;
}

v1::OpRequest OpRequestToProto(const OpRequest& request) {
  v1::OpRequest proto;
  proto.set_op(static_cast<uint32_t>(request.op));
  for (const Operand& operand : request.operands) {
    v1::Operand* to = proto.add_operands();
    to->set_role(static_cast<uint32_t>(operand.role));
    to->mutable_spec()->set_dtype(static_cast<uint32_t>(operand.spec.dtype));
    for (int64_t extent : operand.spec.shape) to->mutable_spec()->add_shape(extent);
    for (int64_t stride : operand.spec.strides) to->mutable_spec()->add_strides(stride);
    to->set_symmetric(operand.symmetric);
    to->set_alias_of(operand.alias_of);
  }
  proto.set_dim(request.dim);
  proto.set_reduce_op(static_cast<uint32_t>(request.reduce_op));
  proto.set_root(request.root);
  proto.set_wire(static_cast<uint32_t>(request.wire));
  proto.set_fast_accumulation(request.fast_accumulation);
  proto.set_low_contention(request.low_contention);
  proto.set_chunk_pivot(request.chunk_pivot);
  for (const Transfer& transfer : request.transfers) {
    v1::Transfer* to = proto.add_transfers();
    to->set_send(transfer.send);
    to->set_peer(transfer.peer);
    to->set_slot(transfer.slot);
  }
  proto.set_algorithm(static_cast<uint32_t>(request.algorithm));
  proto.set_steps(request.steps);
  proto.set_lanes(request.lanes);
  proto.set_on_unfused(static_cast<uint32_t>(request.on_unfused));
  proto.set_restartable(request.restartable);
  proto.set_placement(static_cast<uint32_t>(request.placement));
  proto.set_norm_epsilon(request.norm_epsilon);
  proto.set_max_rows(request.max_rows);
  proto.set_determinism(static_cast<uint32_t>(request.determinism));
  proto.set_rounding(static_cast<uint32_t>(request.rounding));
  return proto;
}

}  // namespace tandem::daemon
