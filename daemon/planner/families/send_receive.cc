// Sends and receives between pairs of ranks: all of a rank's transfers form one transfer group, so that they
// progress together whatever order the ranks name them in. The i-th send from a to b meets the i-th receive
// on b from a.
#include <algorithm>
#include <array>

#include "daemon/planner/families/families.h"
#include "daemon/planner/problem/operand_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

struct Message {
  int from = 0, to = 0;
  int send_slot = 0, receive_slot = 0;
  int index = 0;         // the how-manieth of this pair
  uint64_t landing = 0;  // offset in the receiver's landing area
  bool in_place = false;
};

std::vector<std::pair<int, int>> SlotsOf(const OpRequest& request, bool send,
                                         int peer) {  // transfer index, slot
  std::vector<std::pair<int, int>> slots;
  for (int i = 0; i < static_cast<int>(request.transfers.size()); ++i) {
    const Transfer& transfer = request.transfers[i];
    if (transfer.send == send && transfer.peer == peer) slots.emplace_back(i, transfer.slot);
  }
  return slots;
}

// A sender reaches a peer's slot only through its own slot of the same number, bound at the same offset.
bool Reachable(const Problem& problem, const Message& message) {
  const auto& own = problem.requests[message.from].operands;
  const Operand& target = problem.requests[message.to].operands[message.receive_slot];
  return target.symmetric && message.receive_slot < static_cast<int>(own.size()) &&
         own[message.receive_slot].symmetric && own[message.receive_slot].spec == target.spec;
}

Result<std::vector<Message>> Match(const Problem& problem) {
  std::vector<Message> messages;
  for (int from = 0; from < problem.world_size; ++from) {
    for (int to = 0; to < problem.world_size; ++to) {
      const auto sends = SlotsOf(problem.requests[from], true, to);
      const auto receives = SlotsOf(problem.requests[to], false, from);
      if (sends.size() != receives.size()) {
        return FieldError("transfers", Text("rank ", from, " sends ", sends.size(), " times to rank ", to,
                                            ", which receives ", receives.size(), " times from it"));
      }
      for (size_t i = 0; i < sends.size(); ++i) {
        const TensorSpec& sent = problem.requests[from].operands[sends[i].second].spec;
        const TensorSpec& received = problem.requests[to].operands[receives[i].second].spec;
        if (sent.dtype != received.dtype || sent.shape != received.shape) {
          return FieldError(
              Text("transfers[", receives[i].first, "].slot"),
              Text("rank ", to, " receives ", DTypeName(received.dtype), ShapeText(received.shape),
                   " where rank ", from, " sends ", DTypeName(sent.dtype), ShapeText(sent.shape)));
        }
        Message message{from, to, sends[i].second, receives[i].second, static_cast<int>(i), 0, false};
        message.in_place = from != to && Reachable(problem, message);
        messages.push_back(message);
      }
    }
  }
  return messages;
}

}  // namespace

Status BuildSendReceive(const Problem& problem, OperationPlan* plan) {
  const int world = problem.world_size;
  TANDEM_ASSIGN_OR_RETURN(std::vector<Message> messages, Match(problem));
  Builder builder(world, 1);
  std::array<uint64_t, kMaxWorldSize> landing{};
  int most = 0;
  bool in_place = false;
  for (Message& message : messages) {
    in_place |= message.in_place;
    if (message.from == message.to) continue;
    most = std::max(most, message.index + 1);
    if (message.in_place) continue;
    const uint64_t bytes = Bytes(problem.Slot(message.from, message.send_slot));
    message.landing = landing[message.to];
    landing[message.to] += (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  }
  const uint64_t area = builder.Reserve(*std::max_element(landing.begin(), landing.end()));
  const int first = builder.Signals(most);
  const bool enters = in_place || builder.InBulk();
  if (enters) builder.Enter();
  for (int r = 0; r < world; ++r) {
    if (!enters) builder.AnnounceStart(r, 0);
    TransferGroupStep group;
    for (const Message& message : messages) {
      if (message.from == message.to || (message.from != r && message.to != r)) continue;
      TransferPart part;
      part.send = message.from == r;
      part.peer = static_cast<uint8_t>(part.send ? message.to : message.from);
      part.index = static_cast<uint16_t>(first + message.index);
      if (part.send) {
        part.src = problem.Slot(r, message.send_slot);
        part.dst = message.in_place
                       ? problem.Slot(message.to, message.receive_slot)
                       : PackedLike(part.src, builder.Workspace(message.to, area + message.landing));
      }
      group.parts.push_back(std::move(part));
    }
    if (!group.parts.empty()) builder.Add(r, 0, std::move(group), "transfers");
    for (const Message& message : messages) {
      if (message.to != r || message.in_place) continue;
      const View out = problem.Slot(r, message.receive_slot);
      const View src = message.from == r ? problem.Slot(r, message.send_slot)
                                         : PackedLike(out, builder.Workspace(r, area + message.landing));
      builder.Copy(r, 0, src, out, true, Text("receive from ", message.from));
    }
    if (!enters) builder.AwaitStarts(r, 0);
  }
  return builder.Finish(plan);
}

}  // namespace tandem::plan
