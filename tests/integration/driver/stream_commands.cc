// Commands around streams: capture and replay, launches from several threads, and a fork of the process.

#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "tests/integration/driver/commands.h"

namespace tandem::driver {

// {"graph": name, "stream": …, "launches": [{"plan": …, "bindings": […]}…]}: one graph of these launches.
Status Session::Capture(const json& command) {
  TANDEM_ASSIGN_OR_RETURN(RankStream * stream, Stream(command));
  TANDEM_RETURN_IF_ERROR(stream->BeginCapture());
  Status made;
  for (const json& launch : command.value("launches", json::array())) {
    auto plan = FindPlan(launch);
    auto bindings = Bindings(launch);
    made = !plan.ok() ? plan.status() : !bindings.ok() ? bindings.status() : (*plan)->Launch(stream->ref(), *bindings);
    if (!made.ok()) break;
  }
  auto graph = stream->EndCapture();
  TANDEM_RETURN_IF_ERROR(made);
  TANDEM_RETURN_IF_ERROR(graph.status());
  graphs_.insert_or_assign(command.value("graph", "g"), *std::move(graph));
  return Status::Ok();
}

Status Session::Replay(const json& command) {
  auto graph = graphs_.find(command.value("graph", "g"));
  if (graph == graphs_.end()) return NotFound("the script has no such graph");
  TANDEM_ASSIGN_OR_RETURN(RankStream * stream, Stream(command));
  for (int i = 0; i < command.value("times", 1); ++i) {
    TANDEM_RETURN_IF_ERROR(stream->Replay(*graph->second));
  }
  return Status::Ok();
}

// {"launches": [{"plan": …, "bindings": …, "stream": …, "times": …}…]}: each from a thread of its own, at once.
Status Session::LaunchThreads(const json& command) {
  json launches = command.value("launches", json::array());
  for (const json& launch : launches) {
    TANDEM_RETURN_IF_ERROR(Stream(launch).status());  // the map of streams belongs to this thread
  }
  std::vector<Status> statuses(launches.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < launches.size(); ++i) {
    threads.emplace_back([this, &launches, &statuses, i] {
      json reply;
      statuses[i] = Launch(launches[i], &reply);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) TANDEM_RETURN_IF_ERROR(status);
  return Status::Ok();
}

// What a forked child's handles answer: {"codes": [Client::Check, Plan::Launch of any plan, …]}. The child then ends.
Status Session::Fork(json* reply) {
  TANDEM_ASSIGN_OR_RETURN(RankStream * stream, Stream(json::object()));
  int ends[2];
  if (::pipe(ends) != 0) return Internal("pipe failed");
  pid_t child = ::fork();
  if (child < 0) return Internal("fork failed");
  if (child == 0) {
    std::vector<Status> statuses = {client_->Check()};
    if (!plans_.empty()) statuses.push_back(plans_.begin()->second->Launch(stream->ref(), {}));
    if (!plans_.empty()) statuses.push_back(plans_.begin()->second->Wait(Milliseconds(1000)));
    statuses.push_back(client_->Detach());
    for (const Status& status : statuses) {
      auto code = static_cast<char>(status.code());
      if (::write(ends[1], &code, 1) != 1) ::_exit(3);
    }
    // A child that ends as a program does, by the destructors of its handles, must do no harm either.
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
  for (char code; ::read(ends[0], &code, 1) == 1;) (*reply)["codes"].push_back(CodeName(static_cast<Code>(code)));
  ::close(ends[0]);
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return Internal("waitpid failed");
  (*reply)["exit"] = status;
  return Status::Ok();
}

}  // namespace tandem::driver
