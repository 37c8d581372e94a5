// Commands that fork the process: what a child may do, and must not.

#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/integration/driver/commands.h"

namespace tandem::driver {

// Every call that might reach the daemon or the parent's memory, on the handles that there are.
std::vector<Status> Session::CallEverything(StreamRef stream) {
  constexpr Milliseconds kShort(1000);
  const OpRequest request{.op = Op::kEmpty, .operands = {}, .transfers = {}};
  JoinOptions join;
  join.job_key = "0123456789abcdef";
  join.deadline = kShort;
  std::vector<Status> statuses = {
      client_->Check(),
      client_->JoinGroup(join).status(),
      client_->Empty({4}, DType::kF32, "").status(),
      client_->Free(1),
      client_->RegisterFd(0, 4096, "").status(),
      client_->AllocateRegistered(4096, "").status(),
      client_->RegisterCuda(this, 4096).status(),
  };
  for (const auto& [name, group] : groups_) {
    statuses.push_back(group->Prepare("forked", request, kShort).status());
    statuses.push_back(group->Allocate({4}, DType::kF32, {}, kShort).status());
    statuses.push_back(client_->Rendezvous(1, group, kShort).status());
    statuses.push_back(group->Leave(kShort));
  }
  for (const auto& [name, plan] : plans_) {
    statuses.push_back(plan->Launch(stream, {}));
    statuses.push_back(plan->LaunchWithoutStream({}).status());
    statuses.push_back(plan->WaitLaunch(1, kShort));
    statuses.push_back(plan->Wait(kShort));
    statuses.push_back(plan->Query().status());
    statuses.push_back(plan->Release());
  }
  for (const auto& [name, named] : memories_) {
    auto tensor = std::dynamic_pointer_cast<SymmetricTensor>(named.memory);
    if (tensor == nullptr) continue;
    statuses.push_back(tensor->GetBuffer(0, {1}, DType::kF32).status());
    statuses.push_back(tensor->PutSignal(0, 0, kShort));
    statuses.push_back(tensor->WaitSignal(0, 0, kShort));
    statuses.push_back(tensor->Barrier(0, kShort));
    statuses.push_back(tensor->StreamWriteValue32(stream, 0, 0, 1));
    statuses.push_back(tensor->Memset32(stream, 0, 0, 1, 1));
  }
  statuses.push_back(client_->Detach());
  statuses.push_back(Client::Connect(options_).status());
  return statuses;
}

// {"runtime_dir": …}: a child without handles tries to connect. Its answer is the reply's.
Status Session::ForkAndConnect(const json& command, json* reply) {
  int ends[2];
  if (::pipe(ends) != 0) return Internal("pipe failed");
  const pid_t child = ::fork();
  if (child < 0) return Internal("fork failed");
  if (child == 0) {
    ::alarm(60);
    ConnectOptions options;
    options.runtime_dir = command.value("runtime_dir", "");
    auto connected = Client::Connect(options);
    if (connected.ok())
      connected = Result<std::shared_ptr<Client>>((*connected)->Check().ok() ? *connected : nullptr);
    const Status status = !connected.ok() ? connected.status()
                          : *connected    ? Status::Ok()
                                          : Internal("not really");
    const std::string text = json{{"code", CodeName(status.code())}, {"message", status.message()}}.dump();
    ::_exit(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 3);
  }
  ::close(ends[1]);
  std::string text;
  char part[512];
  for (ssize_t n; (n = ::read(ends[0], part, sizeof(part))) > 0;) text.append(part, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return Internal("waitpid failed");
  (*reply)["child"] = json::parse(text, nullptr, false);
  (*reply)["exit"] = status;
  return Status::Ok();
}

// {"codes": […]}: what calls of a forked child answer. The child then ends.
Status Session::Fork(json* reply) {
  TANDEM_ASSIGN_OR_RETURN(RankStream * stream, Stream(json::object()));
  int ends[2];
  if (::pipe(ends) != 0) return Internal("pipe failed");
  pid_t child = ::fork();
  if (child < 0) return Internal("fork failed");
  if (child == 0) {
    ::alarm(60);
    std::vector<Status> statuses = CallEverything(stream->ref());
    for (const Status& status : statuses) {
      auto code = static_cast<char>(status.code());
      if (::write(ends[1], &code, 1) != 1) ::_exit(3);
    }
    // A child that ends normally, by its handles' destructors, must do no harm either.
    if (client_->backend() == "host") {
      graphs_.clear();
    } else {  // CUDA's own objects are the parent's: not to be touched here
      for (auto& [name, named] : memories_) (void)named.mirror.release();
    }
    plans_.clear();
    memories_.clear();
    groups_.clear();
    client_.reset();
    ::_exit(0);
  }
  ::close(ends[1]);
  (*reply)["codes"] = json::array();
  for (char code; ::read(ends[0], &code, 1) == 1;)
    (*reply)["codes"].push_back(CodeName(static_cast<Code>(code)));
  ::close(ends[0]);
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return Internal("waitpid failed");
  (*reply)["exit"] = status;
  return Status::Ok();
}

}  // namespace tandem::driver
