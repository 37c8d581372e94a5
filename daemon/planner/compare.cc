// CompareRequests: the fields on which all ranks must agree. A rank's own are chunk_pivot, transfers, and,
// for send_receive, its operands (symmetric ones apart).
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/op_tables.h"
#include "daemon/planner/planner.h"
#include "daemon/planner/problem/operand_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

using Requests = std::span<const OpRequest>;

// The value of a field as text, for the comparison and for the message.
using FieldText = std::function<std::string(const OpRequest&)>;

// The ranks whose text is not that of most ranks; all of them where no text has most.
std::vector<uint32_t> Deviants(Requests requests, const FieldText& text) {
  std::map<std::string, std::vector<uint32_t>> ranks_of;
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    ranks_of[text(requests[rank])].push_back(static_cast<uint32_t>(rank));
  }
  size_t most = 0;
  for (const auto& [value, ranks] : ranks_of) most = std::max(most, ranks.size());
  const bool is_majority = 2 * most > requests.size();
  std::vector<uint32_t> deviants;
  for (const auto& [value, ranks] : ranks_of) {
    if (is_majority && ranks.size() == most) continue;
    deviants.insert(deviants.end(), ranks.begin(), ranks.end());
  }
  std::sort(deviants.begin(), deviants.end());
  return deviants;
}

Status CompareField(Requests requests, const std::string& field, const FieldText& text) {
  const std::string first = text(requests[0]);
  bool equal = true;
  for (const OpRequest& request : requests) equal = equal && text(request) == first;
  if (equal) return Status::Ok();
  std::string message = Text(field, " differs:");
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    message += Text(rank == 0 ? " " : ", ", "rank ", rank, " has ", text(requests[rank]));
  }
  StatusDetail detail;
  detail.reason = "FIELD_MISMATCH";
  detail.field = field;
  detail.ranks = Deviants(requests, text);
  for (const uint32_t rank : detail.ranks) {
    detail.who += (detail.who.empty() ? "ranks " : ", ") + std::to_string(rank);
  }
  if (detail.ranks.size() == 1) detail.who = "rank " + std::to_string(detail.ranks[0]);
  return Status(Code::kInvalidArgument, std::move(message), std::move(detail));
}

std::string BoolText(bool value) { return value ? "true" : "false"; }

// Whether two requests' operands agree; cheap, so that the usual case makes no text.
bool Agree(const OpRequest& x, const OpRequest& y, int slot) {
  const Operand &a = x.operands[slot], &b = y.operands[slot];
  return a == b ||
         (a.role == b.role && a.spec.dtype == b.spec.dtype && a.spec.shape == b.spec.shape &&
          a.symmetric == b.symmetric && a.alias_of == b.alias_of && StridesOf(x, slot) == StridesOf(y, slot));
}

Status CompareOperand(Requests requests, int slot) {
  bool equal = true;
  for (const OpRequest& request : requests) equal = equal && Agree(request, requests[0], slot);
  if (equal) return Status::Ok();
  const auto compare = [&](std::string_view member, const std::function<std::string(const Operand&)>& text) {
    return CompareField(requests, OperandField(slot, member),
                        [&](const OpRequest& request) { return text(request.operands[slot]); });
  };
  TANDEM_RETURN_IF_ERROR(compare("role", [](const Operand& o) { return std::string(RoleName(o.role)); }));
  TANDEM_RETURN_IF_ERROR(compare("dtype", [](const Operand& o) {
    return IsValid(o.spec.dtype) ? std::string(DTypeName(o.spec.dtype))
                                 : Text(static_cast<int>(o.spec.dtype));
  }));
  TANDEM_RETURN_IF_ERROR(compare("shape", [](const Operand& o) { return ShapeText(o.spec.shape); }));
  TANDEM_RETURN_IF_ERROR(
      CompareField(requests, OperandField(slot, "strides"),
                   [slot](const OpRequest& request) { return ShapeText(StridesOf(request, slot)); }));
  TANDEM_RETURN_IF_ERROR(compare("symmetric", [](const Operand& o) { return BoolText(o.symmetric); }));
  return compare("alias_of", [](const Operand& o) { return Text(o.alias_of); });
}

// A symmetric slot of send_receive's own operands must be the same everywhere: peers write through it.
Status CompareSymmetricSlots(Requests requests) {
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    for (size_t slot = 0; slot < requests[rank].operands.size(); ++slot) {
      if (!requests[rank].operands[slot].symmetric) continue;
      const auto text = [slot](const OpRequest& request) {
        if (slot >= request.operands.size()) return std::string("no such slot");
        const Operand& o = request.operands[slot];
        return Text(o.symmetric ? "symmetric " : "own ", DTypeName(o.spec.dtype), ShapeText(o.spec.shape),
                    ShapeText(StridesOf(request, static_cast<int>(slot))));
      };
      TANDEM_RETURN_IF_ERROR(CompareField(requests, Text("operands[", slot, "]"), text));
    }
  }
  return Status::Ok();
}

}  // namespace

Status CompareRequests(std::span<const OpRequest> requests) {
  if (requests.empty()) return InvalidArgument("no requests to compare");
  const OpRequest& first = requests[0];
  const auto agree = [&](auto&& get) {
    for (const OpRequest& request : requests) {
      if (get(request) != get(first)) return false;
    }
    return true;
  };
  // One line a field: compared by value, and put into words only when it differs.
#define TANDEM_COMPARE(member, words)                                                 \
  if (!agree([](const OpRequest& r) { return r.member; })) {                          \
    return CompareField(requests, #member, [](const OpRequest& r) { return words; }); \
  }
  TANDEM_COMPARE(op, std::string(OpName(r.op)))
  TANDEM_COMPARE(dim, Text(r.dim))
  TANDEM_COMPARE(reduce_op, std::string(NameOf(r.reduce_op)))
  TANDEM_COMPARE(root, Text(r.root))
  TANDEM_COMPARE(wire, std::string(NameOf(r.wire)))
  TANDEM_COMPARE(norm_epsilon, std::to_string(r.norm_epsilon))
  TANDEM_COMPARE(max_rows, Text(r.max_rows))
  TANDEM_COMPARE(fast_accumulation, BoolText(r.fast_accumulation))
  TANDEM_COMPARE(low_contention, BoolText(r.low_contention))
  TANDEM_COMPARE(restartable, BoolText(r.restartable))
  TANDEM_COMPARE(placement, std::string(PlacementName(r.placement)))
  TANDEM_COMPARE(determinism, std::string(NameOf(r.determinism)))
  TANDEM_COMPARE(rounding, std::string(NameOf(r.rounding)))
  TANDEM_COMPARE(algorithm, std::string(AlgorithmName(r.algorithm)))
  TANDEM_COMPARE(steps, Text(r.steps))
  TANDEM_COMPARE(lanes, Text(r.lanes))
  TANDEM_COMPARE(on_unfused, std::string(NameOf(r.on_unfused)))
#undef TANDEM_COMPARE
  if (first.op == Op::kSendReceive) return CompareSymmetricSlots(requests);
  if (!agree([](const OpRequest& r) { return r.operands.size(); })) {
    return CompareField(requests, "operands",
                        [](const OpRequest& r) { return Text(r.operands.size(), " operands"); });
  }
  for (int slot = 0; slot < static_cast<int>(first.operands.size()); ++slot) {
    TANDEM_RETURN_IF_ERROR(CompareOperand(requests, slot));
  }
  return Status::Ok();
}

}  // namespace tandem::plan
