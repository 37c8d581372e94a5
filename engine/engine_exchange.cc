// An engine's exchange with tandemd: commands, their answers, and the change from one tandemd to the next.
#include <fcntl.h>

#include <utility>

#include "engine/engine.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::engine {

bool Engine::ExecuteCommands() {
  bool any = false;
  ReceivedCommand received;
  while (!stopping_ && link_.Next(&received)) {
    any = true;
    // It may block behind a lane.
    if (queue_) queue_->CancelSpeculation();
    Execute(std::move(received));
  }
  return any;
}

void Engine::Execute(ReceivedCommand received) {
  uint64_t id = received.command->id();
  bool deferred = false;
  std::vector<UniqueFd> copies = holdings_.CopiesOf(received.fds);
  Status status = Dispatch(*received.command, std::move(received.fds), &deferred);
  if (status.ok()) holdings_.Note(*received.command, std::move(copies));
  if (!deferred) SendAck(id, status);
}

void Engine::SendAck(uint64_t id, const Status& status, const std::string& payload) {
  v1::Message message;
  v1::Ack* ack = message.mutable_ack();
  ack->set_id(id);
  ack->set_code(static_cast<int>(status.code()));
  ack->set_message(status.message());
  ack->set_reason(status.detail().reason);
  ack->set_who(status.detail().who);
  ack->set_field(status.detail().field);
  ack->set_payload(payload);
  link_.Send(message);
}

bool Engine::FinishPendingAcks() {
  bool any = false;
  for (size_t i = 0; i < pending_acks_.size();) {
    Result<bool> finished = pending_acks_[i].finished();
    if (finished.ok() && !*finished) {
      ++i;
      continue;
    }
    // The next tandemd counts its commands anew.
    if (pending_acks_[i].of_tandemd == link_.successions())
      SendAck(pending_acks_[i].command_id, finished.status(), pending_acks_[i].payload);
    pending_acks_.erase(pending_acks_.begin() + static_cast<ptrdiff_t>(i));
    any = true;
  }
  return any;
}

void Engine::HoldFrom(const v1::Start& start, const std::vector<UniqueFd>& fds, const v1::Ready& ready) {
  std::vector<UniqueFd> copies;
  copies.reserve(fds.size());
  for (const UniqueFd& fd : fds) copies.emplace_back(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  link_.AwaitSuccessors(std::move(copies.back()), std::chrono::milliseconds(start.restart_grace_ms()));
  copies.pop_back();
  holdings_.Begin(start, std::move(copies));
  holdings_.SetReady(ready);
}

bool Engine::MeetSuccessor() {
  if (!link_.HasSuccessor() || link_.HasNews()) return false;
  link_.TakeSuccessor();
  holdings_.SendTo(link_);
  return true;
}

}  // namespace tandem::engine
