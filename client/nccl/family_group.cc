#include "client/nccl/family_group.h"

#include <array>
#include <cstdlib>
#include <utility>

namespace tandem::nccl {
namespace {

// For late ranks. NCCL has none, and its programs watch their calls themselves.
int64_t DeadlineMs() {
  static const int64_t deadline = [] {
    const char* given = std::getenv("TANDEM_NCCL_DEADLINE_S");
    const int64_t seconds = given == nullptr ? 0 : std::strtoll(given, nullptr, 10);
    return seconds > 0 ? seconds * 1000 : int64_t{24} * 3600 * 1000;
  }();
  return deadline;
}

constexpr char kCaptured[] = "no call before the capture has prepared its family";

tandem_operand MakeOperand(const TandemLibrary& library, int role, int dtype, const int64_t* extent) {
  tandem_operand operand;
  library.tandem_operand_init(&operand, sizeof(operand));
  operand.role = role;
  operand.dtype = dtype;
  operand.shape = extent;
  operand.dims = 1;
  return operand;
}

// Errors of a preparation that every rank gets.
bool IsRefusal(const Status& status) {
  return status.code() == Code::kInvalidArgument || status.code() == Code::kFailedPrecondition ||
         status.code() == Code::kResourceExhausted || status.code() == Code::kUnimplemented ||
         status.code() == Code::kOutOfRange;
}

}  // namespace

Result<std::unique_ptr<FamilyGroup>> FamilyGroup::Join(Session session, const Place& place) {
  const TandemLibrary& library = *session.library;
  tandem_join_options options;
  library.tandem_join_options_init(&options, sizeof(options));
  options.job_key = place.key.data();
  options.job_key_bytes = place.key.size();
  options.name = "nccl";
  options.world_size = place.ranks;
  options.rank = place.rank;
  options.gpu_uuid = place.gpu.c_str();
  options.launch_deadline_ms = DeadlineMs();
  tandem_group* group = nullptr;
  TANDEM_RETURN_IF_ERROR(library.Take(library.tandem_join_group(session.client.get(), &options, &group)));
  return std::unique_ptr<FamilyGroup>(new FamilyGroup(std::move(session), place, OwnedGroup(group)));
}

tandem_plan* FamilyGroup::Find(const FamilyKey& key, int64_t rows) const {
  const auto found = families_.find(key);
  if (found == families_.end()) return nullptr;
  for (const Family& family : found->second) {
    if (rows <= family.bound) return family.plan.get();
  }
  return nullptr;
}

Status FamilyGroup::Prepare(const FamilyKey& key, int64_t bound) {
  const int64_t ranks = place_.ranks;
  const int64_t part = bound / ranks;
  const int64_t input = key.op == TANDEM_OP_ALL_GATHER ? part : bound;
  const int64_t output = key.op == TANDEM_OP_REDUCE_SCATTER ? part : bound;
  std::array<tandem_operand, 2> operands = {MakeOperand(library_, TANDEM_ROLE_INPUT, key.dtype, &input),
                                            MakeOperand(library_, TANDEM_ROLE_OUTPUT, key.dtype, &output)};
  if (key.in_place) operands[1].alias_of = 0;
  tandem_request request;
  library_.tandem_request_init(&request, sizeof(request));
  request.op = key.op;
  request.operands = operands.data();
  request.operand_count = operands.size();
  request.reduce_op = key.reduce_op;
  request.root = key.root;
  request.max_rows = bound;
  // Ranks that prepare different families hear of it at once, since their numbers are the same.
  const std::string name = "nccl #" + std::to_string(++prepared_);
  tandem_plan* plan = nullptr;
  TANDEM_RETURN_IF_ERROR(
      library_.Take(library_.tandem_prepare(group_.get(), name.c_str(), &request, DeadlineMs(), &plan)));
  families_[key].push_back({bound, OwnedPlan(plan)});
  return Status::Ok();
}

Status FamilyGroup::Launch(const NcclCall& call, NcclDevice& device, tandem_plan* plan, bool in_place,
                           int64_t rows) {
  void* input = const_cast<void*>(call.send);
  void* output = call.receive;
  const size_t bytes = call.count * BytesOf(call.type);
  const bool rooted = call.op == NcclCollective::kBroadcast || call.op == NcclCollective::kReduce;
  const bool is_root = rooted && call.root == place_.rank;
  if (is_root && call.send != call.receive)
    TANDEM_RETURN_IF_ERROR(device.Copy(call.receive, call.send, bytes, call.stream));
  // In place both slots are bound to the larger of the two.
  if (call.op == NcclCollective::kBroadcast || is_root ||
      (in_place && call.op == NcclCollective::kAllGather)) {
    input = output;
  } else if (in_place) {
    output = input;
  }
  tandem_launch_options options;
  library_.tandem_launch_options_init(&options, sizeof(options));
  options.rows = rows;
  const std::array<void*, 2> pointers = {input, output};
  return device.Launch(library_, plan, call.stream, pointers, options);
}

Result<std::string> FamilyGroup::Run(const NcclCall& call, NcclDevice& device) {
  const FamilyKey key = KeyOf(call, place_.rank);
  const int64_t rows = RowsOf(call, place_.ranks);
  // The default stream has no answer while another stream captures.
  const Result<bool> looked = device.IsCapturing(call.stream);
  const bool capturing = !looked.ok() || *looked;
  tandem_plan* plan = Find(key, rows);
  if (plan == nullptr) {
    FamilyKey either = key;
    either.in_place = false;  // ranks that disagree about it have refused the same calls
    if (const auto refused = refused_.find(either); refused != refused_.end()) return refused->second;
    const int64_t bound = BoundFor(rows, place_.ranks);
    if (bound == 0) return std::string("it has more elements than Tandem's families");
    if (capturing) return std::string(kCaptured);
    if (const Status prepared = Prepare(key, bound); !prepared.ok()) {
      if (!IsRefusal(prepared)) return prepared;
      return refused_.emplace(either, "Tandem has no plan for it: " + prepared.message()).first->second;
    }
    plan = Find(key, rows);
  }
  if (capturing) {
    if (OwnedHold hold = device.Hold(library_, call.stream)) holds_.push_back(std::move(hold));
  }
  TANDEM_RETURN_IF_ERROR(Launch(call, device, plan, key.in_place, rows));
  return std::string();
}

Status FamilyGroup::TakeFailure() {
  for (const auto& [key, families] : families_) {
    for (const Family& family : families) {
      int ended = 0;
      TANDEM_RETURN_IF_ERROR(library_.Take(library_.tandem_plan_query(family.plan.get(), &ended)));
    }
  }
  return Status::Ok();
}

void FamilyGroup::Leave(int64_t deadline_ms) {
  (void)library_.Take(library_.tandem_group_leave(group_.get(), deadline_ms));
  Detach();
}

void FamilyGroup::Detach() { (void)library_.Take(library_.tandem_client_detach(session_.client.get())); }

}  // namespace tandem::nccl
