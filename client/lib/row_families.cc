#include "client/lib/row_families.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "client/lib/plan_handle.h"
#include "common/deadline.h"
#include "common/exceptions.h"

namespace tandem::client {
namespace {

// So that the first small calls do not make a family each.
constexpr int64_t kLeastRows = int64_t{1} << 16;
constexpr int64_t kMaxRows = int64_t{1} << 28;

Status BadCall(const std::string& field, const std::string& what) {
  return InvalidArgument(field + " " + what).WithDetail({.reason = "BAD_FIELD", .field = field});
}

bool Reduces(Op op) { return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce; }
bool HasRoot(Op op) { return op == Op::kBroadcast || op == Op::kReduce; }

bool IsCollective(Op op) { return Reduces(op) || HasRoot(op) || op == Op::kAllGather || op == Op::kAllToAll; }

DType BitsOf(DType dtype) {
  switch (DTypeBytes(dtype)) {
    case 1: return DType::kU8;
    case 2: return DType::kBf16;
    case 4: return DType::kI32;
    default: return DType::kI64;
  }
}

// NCCL's rule: a part of the larger buffer is in place where the buffer of all ranks has it.
bool IsInPlace(const CollectiveCall& call, int rank) {
  const auto* input = static_cast<const std::byte*>(call.input);
  const auto* output = static_cast<const std::byte*>(call.output);
  const size_t part = static_cast<size_t>(rank) * call.count * DTypeBytes(call.dtype);
  switch (call.op) {
    case Op::kAllReduce: return input == output;
    case Op::kAllGather: return input == output + part;
    case Op::kReduceScatter: return output == input + part;
    // Ranks without the root's part have one buffer alone.
    case Op::kBroadcast:
    case Op::kReduce: return true;
    default: return false;
  }
}

// A difference between ranks other than in place. The next call may be right.
bool IsSlip(const Status& status) {
  return status.detail().reason == "FIELD_MISMATCH" &&
         status.detail().field.find("alias_of") == std::string::npos;
}

// Errors of a preparation that every rank gets.
bool IsSharedRefusal(const Status& status) {
  return status.code() == Code::kInvalidArgument || status.code() == Code::kFailedPrecondition ||
         status.code() == Code::kResourceExhausted || status.code() == Code::kUnimplemented ||
         status.code() == Code::kOutOfRange;
}

Status NotPrepared() {
  return FailedPrecondition(
             "no call before has prepared such a collective, and this one cannot wait for the other ranks: "
             "prepare it before the capture")
      .WithDetail({.reason = "NOT_PREPARED"});
}

// The addresses of the slots. In place both slots are bound to the larger of the two.
std::array<Binding, 2> BindingsOf(const CollectiveCall& call, bool in_place, bool is_root) {
  const void* input = call.input;
  const void* output = call.output;
  if (call.op == Op::kBroadcast || (call.op == Op::kReduce && is_root) ||
      (in_place && call.op == Op::kAllGather)) {
    input = output;
  } else if (in_place) {
    output = input;
  }
  return {Binding{.pointer = input}, Binding{.pointer = output}};
}

}  // namespace

Status CheckCollective(const CollectiveCall& call, int rank, int ranks) {
  if (!IsCollective(call.op)) return BadCall("op", "is " + std::string(OpName(call.op)) + ", no collective");
  if (!IsValid(call.dtype))
    return BadCall("dtype", "is " + std::to_string(static_cast<int>(call.dtype)) + ", no element type");
  const bool is_root = call.root == rank;
  if (HasRoot(call.op) && (call.root < 0 || call.root >= ranks)) {
    return BadCall("root", "is " + std::to_string(call.root) + ", and the group has the ranks 0 to " +
                               std::to_string(ranks - 1));
  }
  if (call.count == 0) return Status::Ok();
  if (call.input == nullptr && (call.op != Op::kBroadcast || is_root)) return BadCall("input", "is NULL");
  if (call.output == nullptr && (call.op != Op::kReduce || is_root)) return BadCall("output", "is NULL");
  if (call.op == Op::kAllToAll && call.input == call.output)
    return BadCall("output", "is the input: all_to_all is not done in place");
  return Status::Ok();
}

CollectiveKind KindOf(const CollectiveCall& call, int rank) {
  CollectiveKind kind;
  kind.op = call.op;
  kind.dtype = Reduces(call.op) ? call.dtype : BitsOf(call.dtype);
  kind.reduce_op = Reduces(call.op) ? call.reduce_op : ReduceOp::kSum;
  kind.root = HasRoot(call.op) ? call.root : 0;
  kind.in_place = IsInPlace(call, rank);
  return kind;
}

Result<int64_t> CollectiveRows(const CollectiveCall& call, int ranks) {
  const bool cut = call.op == Op::kReduceScatter || call.op == Op::kAllToAll;
  const size_t times = cut ? static_cast<size_t>(ranks) : 1;
  if (call.count > static_cast<size_t>(kMaxRows) / times) {
    return OutOfRange("count is " + std::to_string(call.count) + "; one call has at most " +
                      std::to_string(static_cast<size_t>(kMaxRows) / times) + ": make several")
        .WithDetail({.reason = "TOO_MANY_ELEMENTS", .field = "count"});
  }
  return static_cast<int64_t>(call.count * times);
}

int64_t FamilyBound(int64_t rows, int ranks) {
  const auto doubled = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(rows, kLeastRows))));
  return (doubled + ranks - 1) / ranks * ranks;
}

std::shared_ptr<Plan> RowFamilies::Find(const CollectiveKind& kind, int64_t rows) const {
  const auto found = families_.find(kind);
  if (found == families_.end()) return nullptr;
  for (const RowFamily& family : found->second) {
    if (rows <= family.bound) return family.plan;
  }
  return nullptr;
}

Result<std::shared_ptr<Plan>> RowFamilies::PrepareFamily(const CollectiveKind& kind, int64_t bound,
                                                         Milliseconds deadline) {
  const int64_t part = bound / group_->world_size();
  const auto operand = [&](Role role, Op larger_elsewhere) {
    const int64_t extent = kind.op == larger_elsewhere ? part : bound;
    return Operand{.role = role, .spec = {.dtype = kind.dtype, .shape = {extent}}};
  };
  OpRequest request;
  request.op = kind.op;
  request.operands = {operand(Role::kInput, Op::kAllGather), operand(Role::kOutput, Op::kReduceScatter)};
  if (kind.in_place) request.operands[1].alias_of = 0;
  request.reduce_op = kind.reduce_op;
  request.root = kind.root;
  request.max_rows = bound;
  // Ranks that prepare different families hear of it at once, since their numbers are the same.
  const std::string key = "collective #" + std::to_string(prepared_ + 1);
  Result<std::shared_ptr<Plan>> plan = group_->Prepare(key, request, deadline);
  // A call that ranks may make again meets under the same number.
  if (plan.ok() || IsSharedRefusal(plan.status())) ++prepared_;
  return plan;
}

Result<std::shared_ptr<Plan>> RowFamilies::FindOrPrepare(const CollectiveKind& kind, int64_t rows,
                                                         Milliseconds deadline) {
  const std::lock_guard lock(mutex_);
  if (std::shared_ptr<Plan> plan = Find(kind, rows)) return plan;
  CollectiveKind either = kind;
  either.in_place = false;  // ranks that disagree about it have refused the same calls
  if (const auto refused = refused_.find(either); refused != refused_.end()) return refused->second;
  if (deadline.count() <= 0) return NotPrepared();
  const int64_t bound = FamilyBound(rows, group_->world_size());
  Result<std::shared_ptr<Plan>> plan = PrepareFamily(kind, bound, deadline);
  if (plan.ok()) {
    families_[kind].push_back({bound, *plan});
  } else if (IsSharedRefusal(plan.status()) && !IsSlip(plan.status())) {
    refused_.emplace(either, plan.status());
  }
  return plan;
}

Status RowFamilies::Prepare(const CollectiveCall& call, Milliseconds deadline) try {
  TANDEM_RETURN_IF_ERROR(group_->session()->CheckLaunchable());
  TANDEM_RETURN_IF_ERROR(CheckCollective(call, group_->rank(), group_->world_size()));
  if (call.count == 0) return Status::Ok();
  TANDEM_ASSIGN_OR_RETURN(const int64_t rows, CollectiveRows(call, group_->world_size()));
  return FindOrPrepare(KindOf(call, group_->rank()), rows, deadline).status();
}
TANDEM_CATCH_TO_STATUS

Status RowFamilies::Launch(StreamRef ref, const CollectiveCall& call) try {
  TANDEM_RETURN_IF_ERROR(group_->session()->CheckLaunchable());
  TANDEM_RETURN_IF_ERROR(CheckCollective(call, group_->rank(), group_->world_size()));
  if (call.count == 0) return Status::Ok();
  TANDEM_ASSIGN_OR_RETURN(const int64_t rows, CollectiveRows(call, group_->world_size()));
  const CollectiveKind kind = KindOf(call, group_->rank());
  std::shared_ptr<Plan> plan;
  {
    const std::lock_guard lock(mutex_);
    plan = Find(kind, rows);
  }
  const bool copies = HasRoot(call.op) && call.root == group_->rank() && call.input != call.output;
  if (plan == nullptr || copies) {
    TANDEM_ASSIGN_OR_RETURN(ClientDevice * device, group_->session()->device());
    LaunchStreamStorage storage;
    TANDEM_ASSIGN_OR_RETURN(LaunchStream * stream, device->Open(ref, group_->gpu_uuid(), &storage));
    if (plan == nullptr) {
      // A default stream has no answer while another stream captures.
      const Result<bool> capturing = stream->IsCapturing();
      const Milliseconds deadline = capturing.ok() && !*capturing ? kDefaultDeadline : Milliseconds(0);
      TANDEM_ASSIGN_OR_RETURN(plan, FindOrPrepare(kind, rows, deadline));
    }
    if (copies)
      TANDEM_RETURN_IF_ERROR(stream->Copy(call.output, call.input, call.count * DTypeBytes(call.dtype)));
  }
  LaunchOptions options;
  options.rows = rows;
  return plan->Launch(ref, BindingsOf(call, kind.in_place, call.root == group_->rank()), options);
}
TANDEM_CATCH_TO_STATUS

std::vector<std::shared_ptr<Plan>> RowFamilies::Plans() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Plan>> plans;
  for (const auto& [kind, families] : families_) {
    for (const RowFamily& family : families) plans.push_back(family.plan);
  }
  return plans;
}

Status RowFamilies::Wait(Milliseconds wait) try {
  const auto end = std::chrono::steady_clock::now() + Bounded(wait);
  Status reported = group_->session()->CheckUsable();
  for (const auto& plan : Plans()) reported = MoreSevere(std::move(reported), plan->Wait(TimeLeft(end)));
  return reported;
}
TANDEM_CATCH_TO_STATUS

Result<bool> RowFamilies::Query() try {
  TANDEM_RETURN_IF_ERROR(group_->session()->CheckUsable());
  bool ended = true;
  for (const auto& plan : Plans()) {
    TANDEM_ASSIGN_OR_RETURN(const bool has_ended, plan->Query());
    ended = ended && has_ended;
  }
  return ended;
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem::client

namespace tandem {

Result<std::unique_ptr<Collectives>> Collectives::Make(std::shared_ptr<Group> group) try {
  if (group == nullptr)
    return InvalidArgument("group is null").WithDetail({.reason = "BAD_FIELD", .field = "group"});
  return std::unique_ptr<Collectives>(
      std::make_unique<client::RowFamilies>(std::static_pointer_cast<client::GroupHandle>(std::move(group))));
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem
