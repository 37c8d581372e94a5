// The structs of the C interface: their defaults, and what they ask for in C++'s terms. A caller's struct may
// be shorter or longer than this library's, as its `struct_size` says: fields that it lacks have their
// defaults, and fields that this library does not know must be zero.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "client/lib/c_api/c_handles.h"

namespace tandem::c {
namespace {

// The structs' sizes at TANDEM_ABI_VERSION 3. Without tail padding, since a later field would lie in those
// bytes.
constexpr size_t kJoinOptionsSize = offsetof(tandem_join_options, reserved) + sizeof(int);
constexpr size_t kOperandSize = offsetof(tandem_operand, alias_of) + sizeof(int);
constexpr size_t kLaunchOptionsSize = offsetof(tandem_launch_options, rows) + sizeof(int64_t);
constexpr size_t kRequestSize = offsetof(tandem_request, placement) + sizeof(int);
constexpr size_t kCollectiveSize = offsetof(tandem_collective, root) + sizeof(int);
constexpr size_t kMemoryUsageSize = offsetof(tandem_memory_usage, host_bytes) + sizeof(uint64_t);
static_assert(kMemoryUsageSize == sizeof(tandem_memory_usage));
static_assert(kCollectiveSize == sizeof(tandem_collective));
static_assert(kJoinOptionsSize == sizeof(tandem_join_options));
static_assert(kLaunchOptionsSize == sizeof(tandem_launch_options));
static_assert(kOperandSize == sizeof(tandem_operand));
static_assert(kRequestSize < sizeof(tandem_request));

template <typename Struct>
void Init(Struct* to, size_t struct_size, Struct defaults) {
  if (to == nullptr || struct_size < sizeof(size_t)) return;
  defaults.struct_size = struct_size;
  std::memset(static_cast<void*>(to), 0, struct_size);
  std::memcpy(static_cast<void*>(to), &defaults, std::min(struct_size, sizeof(Struct)));
}

// `to` has the defaults. `least`: the size at the first version; `name`: the struct's, for errors.
template <typename Struct>
Status Read(const void* from, size_t least, const std::string& name, Struct* to) {
  size_t size = 0;
  std::memcpy(&size, from, sizeof(size));
  if (size < least || size > 16 * sizeof(Struct)) {
    return BadField(name + ".struct_size",
                    "is " + std::to_string(size) + ": call tandem_" + name + "_init first");
  }
  const auto* bytes = static_cast<const unsigned char*>(from);
  std::memcpy(static_cast<void*>(to), bytes, std::min(size, sizeof(Struct)));
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] == 0) continue;
    return BadField(
        name, "sets a field that this version of the library does not have, at byte " + std::to_string(i));
  }
  return Status::Ok();
}

tandem_join_options JoinDefaults() {
  tandem_join_options options{};
  options.world_size = 1;
  options.on_slow_placement = static_cast<int>(JoinOptions().on_slow_placement);
  return options;
}

tandem_collective CollectiveDefaults() {
  tandem_collective collective{};
  collective.op = TANDEM_OP_ALL_REDUCE;
  return collective;
}

tandem_operand OperandDefaults() {
  tandem_operand operand{};
  operand.role = TANDEM_ROLE_INPUT;
  operand.alias_of = -1;
  return operand;
}

tandem_launch_options LaunchDefaults() {
  tandem_launch_options options{};
  options.rows = LaunchOptions::kBoundRows;
  return options;
}

tandem_request RequestDefaults() {
  const OpRequest defaults;
  tandem_request request{};
  request.op = static_cast<int>(defaults.op);
  request.fast_accumulation = defaults.fast_accumulation ? 1 : 0;
  request.on_unfused = static_cast<int>(defaults.on_unfused);
  return request;
}

// A value of an enumeration of one byte. The daemon checks that it is a constant.
template <typename Enum>
Status ToEnum(int value, const std::string& field, Enum* to) {
  static_assert(sizeof(Enum) == 1);
  if (value < 0 || value > 255)
    return BadField(field, "is " + std::to_string(value) + ", which the enumeration does not have");
  *to = static_cast<Enum>(value);
  return Status::Ok();
}

Result<Operand> ToOperand(const unsigned char* from, const std::string& name) {
  tandem_operand operand = OperandDefaults();
  Status read = Read(from, kOperandSize, "operand", &operand);
  if (!read.ok()) return read.WithContext(name);
  if (operand.dims > 0 && operand.shape == nullptr) return BadField(name + ".shape", "is NULL");
  Operand to;
  TANDEM_RETURN_IF_ERROR(ToEnum(operand.role, name + ".role", &to.role));
  TANDEM_ASSIGN_OR_RETURN(to.spec.dtype, ToDType(operand.dtype, name + ".dtype"));
  to.spec.shape = Shape(operand.shape, operand.dims);
  to.spec.strides = Shape(operand.strides, operand.dims);
  to.symmetric = operand.symmetric != 0;
  to.alias_of = operand.alias_of;
  return to;
}

Status AddOperands(const tandem_request& from, OpRequest* request) {
  if (from.operand_count == 0) return Status::Ok();
  if (from.operands == nullptr) return BadField("operands", "is NULL");
  const auto* bytes = reinterpret_cast<const unsigned char*>(from.operands);
  const size_t stride = from.operands[0].struct_size;
  for (size_t i = 0; i < from.operand_count; ++i) {
    const std::string name = "operands[" + std::to_string(i) + "]";
    TANDEM_ASSIGN_OR_RETURN(Operand operand, ToOperand(bytes + i * stride, name));
    if (reinterpret_cast<const tandem_operand*>(bytes + i * stride)->struct_size != stride) {
      return BadField(name + ".struct_size", "is not that of operands[0]");
    }
    request->operands.push_back(std::move(operand));
  }
  return Status::Ok();
}

}  // namespace

Result<DType> ToDType(int dtype, const std::string& field) {
  if (dtype >= 0 && dtype <= 255 && IsValid(static_cast<DType>(dtype))) return static_cast<DType>(dtype);
  return BadField(field, "is " + std::to_string(dtype) + ", which is no element type");
}

Result<OpRequest> ToRequest(const tandem_request& given) {
  tandem_request from = RequestDefaults();
  TANDEM_RETURN_IF_ERROR(Read(&given, kRequestSize, "request", &from));
  OpRequest request;
  TANDEM_RETURN_IF_ERROR(ToEnum(from.op, "op", &request.op));
  TANDEM_RETURN_IF_ERROR(AddOperands(from, &request));
  request.dim = from.dim;
  TANDEM_RETURN_IF_ERROR(ToEnum(from.reduce_op, "reduce_op", &request.reduce_op));
  request.root = from.root;
  TANDEM_RETURN_IF_ERROR(ToEnum(from.wire, "wire", &request.wire));
  request.fast_accumulation = from.fast_accumulation != 0;
  request.low_contention = from.low_contention != 0;
  request.chunk_pivot = from.chunk_pivot;
  if (from.transfers == nullptr && from.transfer_count > 0) return BadField("transfers", "is NULL");
  for (size_t i = 0; i < from.transfer_count; ++i) {
    request.transfers.push_back(
        {from.transfers[i].send != 0, from.transfers[i].peer, from.transfers[i].slot});
  }
  TANDEM_RETURN_IF_ERROR(ToEnum(from.algorithm, "algorithm", &request.algorithm));
  request.steps = from.steps;
  request.lanes = from.lanes;
  TANDEM_RETURN_IF_ERROR(ToEnum(from.on_unfused, "on_unfused", &request.on_unfused));
  request.restartable = from.restartable != 0;
  TANDEM_RETURN_IF_ERROR(ToEnum(from.placement, "placement", &request.placement));
  request.autotune = from.autotune != 0;
  request.norm_epsilon = from.norm_epsilon;
  request.max_rows = from.max_rows;
  TANDEM_RETURN_IF_ERROR(ToEnum(from.determinism, "determinism", &request.determinism));
  TANDEM_RETURN_IF_ERROR(ToEnum(from.rounding, "rounding", &request.rounding));
  return request;
}

Result<LaunchOptions> ToLaunchOptions(const tandem_launch_options* given) {
  tandem_launch_options from = LaunchDefaults();
  if (given != nullptr) TANDEM_RETURN_IF_ERROR(Read(given, kLaunchOptionsSize, "launch_options", &from));
  if (from.deadline_ms < 0) return BadField("deadline_ms", "is negative: a launch waits for the other ranks");
  LaunchOptions options;
  options.deadline = Milliseconds(from.deadline_ms);
  options.tag = Text(from.tag);
  options.rows = from.rows;
  return options;
}

Result<JoinOptions> ToJoinOptions(const tandem_join_options& given) {
  tandem_join_options from = JoinDefaults();
  TANDEM_RETURN_IF_ERROR(Read(&given, kJoinOptionsSize, "join_options", &from));
  if (from.option_count > 0 && from.option_names == nullptr) return BadField("option_names", "is NULL");
  if (from.option_count > 0 && from.option_values == nullptr) return BadField("option_values", "is NULL");
  if (from.launch_deadline_ms < 0) return BadField("launch_deadline_ms", "is negative");
  if (from.reserved != 0) return BadField("reserved", "is not 0");
  JoinOptions join;
  join.job_key.assign(static_cast<const char*>(from.job_key),
                      from.job_key == nullptr ? 0 : from.job_key_bytes);
  join.name = Text(from.name);
  join.world_size = from.world_size;
  join.rank = from.rank;
  join.gpu_uuid = Text(from.gpu_uuid);
  join.deadline = ToDeadline(from.deadline_ms, kDefaultDeadline);
  join.launch_deadline = Milliseconds(from.launch_deadline_ms);
  for (size_t i = 0; i < from.option_count; ++i)
    join.options[Text(from.option_names[i])] = Text(from.option_values[i]);
  TANDEM_RETURN_IF_ERROR(ToEnum(from.on_slow_placement, "on_slow_placement", &join.on_slow_placement));
  return join;
}

Result<CollectiveCall> ToCollectiveCall(const tandem_collective& given) {
  tandem_collective from = CollectiveDefaults();
  TANDEM_RETURN_IF_ERROR(Read(&given, kCollectiveSize, "collective", &from));
  CollectiveCall call;
  TANDEM_RETURN_IF_ERROR(ToEnum(from.op, "op", &call.op));
  TANDEM_ASSIGN_OR_RETURN(call.dtype, ToDType(from.dtype));
  TANDEM_RETURN_IF_ERROR(ToEnum(from.reduce_op, "reduce_op", &call.reduce_op));
  call.input = from.input;
  call.output = from.output;
  call.count = from.count;
  call.root = from.root;
  return call;
}

Status WriteUsage(const Result<MemoryUsage>& from, tandem_memory_usage* usage) {
  TANDEM_RETURN_IF_ERROR(from.status());
  tandem_memory_usage known{};
  TANDEM_RETURN_IF_ERROR(Read(usage, kMemoryUsageSize, "memory_usage", &known));
  known.symmetric_bytes = from->symmetric_bytes;
  known.workspace_bytes = from->workspace_bytes;
  known.signal_bytes = from->signal_bytes;
  known.segment_bytes = from->segment_bytes;
  known.peer_bytes = from->peer_bytes;
  known.registered_bytes = from->registered_bytes;
  known.imported_bytes = from->imported_bytes;
  known.host_bytes = from->host_bytes;
  std::memcpy(usage, &known, std::min(known.struct_size, sizeof known));
  return Status::Ok();
}

}  // namespace tandem::c

extern "C" {

void tandem_collective_init(tandem_collective* collective, size_t struct_size) {
  tandem::c::Init(collective, struct_size, tandem::c::CollectiveDefaults());
}
void tandem_join_options_init(tandem_join_options* options, size_t struct_size) {
  tandem::c::Init(options, struct_size, tandem::c::JoinDefaults());
}
void tandem_launch_options_init(tandem_launch_options* options, size_t struct_size) {
  tandem::c::Init(options, struct_size, tandem::c::LaunchDefaults());
}
void tandem_memory_usage_init(tandem_memory_usage* usage, size_t struct_size) {
  tandem::c::Init(usage, struct_size, tandem_memory_usage{});
}
void tandem_operand_init(tandem_operand* operand, size_t struct_size) {
  tandem::c::Init(operand, struct_size, tandem::c::OperandDefaults());
}
void tandem_request_init(tandem_request* request, size_t struct_size) {
  tandem::c::Init(request, struct_size, tandem::c::RequestDefaults());
}

}  // extern "C"
