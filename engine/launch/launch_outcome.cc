#include "engine/launch/launch_outcome.h"

#include <bit>
#include <utility>

namespace tandem::engine {
namespace {

std::string RankList(uint8_t mask) {
  std::string text = std::has_single_bit(mask) ? "rank " : "ranks ";
  bool first = true;
  for (int rank = 0; rank < plan::kMaxWorldSize; ++rank) {
    if ((mask & (1u << rank)) == 0) continue;
    text += (first ? "" : ", ") + std::to_string(rank);
    first = false;
  }
  return text;
}

}  // namespace

Failure MakeFailure(std::string reason, const Status& status, int who_rank) {
  StatusDetail detail = status.detail();
  detail.reason = std::move(reason);
  if (who_rank >= 0) {
    detail.who = "rank " + std::to_string(who_rank);
    detail.ranks = {static_cast<uint32_t>(who_rank)};
  }
  return {status.WithDetail(std::move(detail)), who_rank};
}

std::string LaunchName(const InstalledPlan& plan, uint64_t count) {
  return "launch " + std::to_string(count) + " of plan " + std::to_string(plan.id);
}

Failure FailureOf(const InstalledPlan& plan, uint64_t count, const LogEntry& entry) {
  const std::string name = LaunchName(plan, count);
  const int who = entry.mask == 0 ? -1 : std::countr_zero(entry.mask);
  const std::string ranks = RankList(entry.mask);
  switch (entry.kind) {
    case LogKind::kFailDeadline:
      return MakeFailure(
          "RANK_LATE", DeadlineExceeded(name + " ended by its deadline: " + ranks + " had not arrived"), who);
    case LogKind::kFailMismatch:
      return MakeFailure("LAUNCH_MISMATCH",
                         InvalidArgument(name + ": tag or offsets of symmetric operands on " + ranks +
                                         " differ from those on rank 0"),
                         who);
    case LogKind::kFailRefused:
      return MakeFailure("LAUNCH_REFUSED", FailedPrecondition(name + " was refused on " + ranks), who);
    case LogKind::kFailOverlap:
      return MakeFailure(
          "LAUNCH_OVERLAP",
          FailedPrecondition(name + ": " + ranks + " launched it before the plan's previous launch was done"),
          who);
    case LogKind::kFailDesync:
      return MakeFailure("DESYNC", FailedPrecondition(name + ": " + ranks + " made another call instead"),
                         who);
    case LogKind::kStart:
    case LogKind::kStall:
    case LogKind::kBreak: break;
  }
  return {Internal(name + ": unknown entry in the order log"), -1};
}

Failure RenewingFailure(uint8_t mask) {
  return MakeFailure(kRenewing, FailedPrecondition(RankList(mask) + " has begun to renew the group"),
                     mask == 0 ? -1 : std::countr_zero(mask));
}

void PublishOutcome(const Origin& origin, uint64_t generation, const Failure& failure) {
  switch (origin.kind) {
    case Origin::Kind::kChannel:
      if (failure.status.ok()) {
        origin.channel->consumer.PublishOk(origin.id, generation);
      } else {
        origin.channel->consumer.PublishStatus(origin.id, failure.status, generation, failure.who_rank);
      }
      break;
    case Origin::Kind::kCaptured:
      origin.channel->consumer.PublishCaptured(origin.slot, origin.id, failure.status, generation,
                                               failure.who_rank);
      break;
    case Origin::Kind::kDirect: break;  // reported once, by CompleteByCpu
  }
}

void FreeOrigin(const Origin& origin) {
  if (origin.kind == Origin::Kind::kChannel) origin.channel->under_way = false;
  if (origin.kind != Origin::Kind::kCaptured) return;
  if (CapturedLaunch* captured = origin.channel->captured[static_cast<size_t>(origin.slot)].get())
    captured->busy = false;
}

void CompleteByCpu(const Origin& origin, const Failure& failure, LaunchListener* listener) {
  FreeOrigin(origin);
  switch (origin.kind) {
    case Origin::Kind::kChannel: origin.channel->consumer.Complete(origin.id); break;
    case Origin::Kind::kCaptured: origin.channel->consumer.CompleteCaptured(origin.slot); break;
    case Origin::Kind::kDirect: listener->OnLaunchDone(origin.id, failure.status); break;
  }
  if (origin.channel && origin.channel->ended) ReleaseAgain(*origin.channel);
}

void ReleaseAgain(Channel& channel) {
  ChannelWords& words = channel.consumer.words();
  if (words.Released()) words.Release(Aborted("the channel has ended"));  // the first reason stays
}

}  // namespace tandem::engine
