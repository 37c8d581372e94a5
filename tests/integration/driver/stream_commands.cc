// Commands around streams: capture and replay, launches from several threads.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "tests/integration/driver/commands.h"

namespace tandem::driver {

// One graph of the launches of {"graph": name, "stream": …, "launches": [{"plan": …, "bindings": […], …}…]}.
Status Session::Capture(const json& command) {
  TANDEM_ASSIGN_OR_RETURN(RankStream * stream, Stream(command));
  TANDEM_RETURN_IF_ERROR(stream->BeginCapture());
  Status made;
  for (const json& launch : command.value("launches", json::array())) {
    auto plan = FindPlan(launch);
    auto bindings = Bindings(launch);
    LaunchOptions options;
    options.tag = launch.value("tag", "");
    options.rows = launch.value("rows", LaunchOptions::kBoundRows);
    made = !plan.ok()       ? plan.status()
           : !bindings.ok() ? bindings.status()
                            : (*plan)->Launch(stream->ref(), *bindings, options);
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

// Makes the launches of {"launches": [{"plan": …, "bindings": …, "stream": …, "times": …}…]} at once, each
// from a thread of its own.
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

// Streams stand still where "pause" was enqueued, until "resume" or the script's end.
struct Session::Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
};

Session::Session() = default;

Session::~Session() { Resume(); }

Status Session::Pause(const json& command) {
  TANDEM_ASSIGN_OR_RETURN(RankStream * stream, Stream(command));
  auto gate = std::make_shared<Gate>();
  gates_.push_back(gate);
  return stream->Enqueue([gate] {
    std::unique_lock lock(gate->mutex);
    gate->changed.wait_for(lock, std::chrono::minutes(5), [&] { return gate->open; });
  });
}

void Session::Resume() {
  for (const auto& gate : gates_) {
    std::lock_guard lock(gate->mutex);
    gate->open = true;
    gate->changed.notify_all();
  }
  gates_.clear();
}

// {"plans": [key…], "times": n, "rank": r, "world": w, "pause_us": most, "ahead": m}: n launches of
// all-reduces, by turns of the plans, each of [KEY.in] to [KEY.out]. In stream order each gets its input just
// before it and its sums looked at just after it; now and then the stream pauses before it. After every m
// launches the script waits. {"wrong": launches with another sum}
Status Session::LaunchChecked(const json& command, json* reply) {
  TANDEM_ASSIGN_OR_RETURN(RankStream * stream, Stream(command));
  const int rank = command.value("rank", 0), world = command.value("world", 1),
            most = command.value("pause_us", 0);
  const int times = command.value("times", 1), ahead = command.value("ahead", 8);
  struct Turn {
    std::shared_ptr<Plan> plan;
    Elements in, out;
    std::vector<Binding> bindings;
  };
  std::vector<Turn> turns;
  for (const json& key : command.value("plans", json::array())) {
    const std::string name = key.get<std::string>();
    Turn turn;
    TANDEM_ASSIGN_OR_RETURN(turn.plan, FindPlan({{"plan", name}}));
    TANDEM_ASSIGN_OR_RETURN(turn.in, FindElements({{"memory", name + ".in"}}, false));
    TANDEM_ASSIGN_OR_RETURN(turn.out, FindElements({{"memory", name + ".out"}}, false));
    TANDEM_ASSIGN_OR_RETURN(
        turn.bindings,
        Bindings(
            {{"bindings", json::array({json::array({name + ".in", 0}), json::array({name + ".out", 0})})}}));
    turns.push_back(std::move(turn));
  }
  if (turns.empty()) return InvalidArgument("no plans");
  auto wrong = std::make_shared<std::atomic<int>>(0);
  std::minstd_rand random(static_cast<unsigned>(rank + 1));
  for (int i = 0; i < times; ++i) {
    const Turn& turn = turns[static_cast<size_t>(i) % turns.size()];
    const int pause =
        most > 0 && random() % 8 == 0 ? static_cast<int>(random() % static_cast<unsigned>(most)) : 0;
    const auto input = static_cast<float>(i % 1024 + rank);
    const auto sum = static_cast<float>(world * (i % 1024) + world * (world - 1) / 2);
    TANDEM_RETURN_IF_ERROR(stream->Enqueue([in = turn.in, input, pause] {
      if (pause > 0) std::this_thread::sleep_for(std::chrono::microseconds(pause));
      for (size_t e = 0; e < in.count; ++e) StoreFromFloat(in.data(), in.dtype, e, input);
    }));
    TANDEM_RETURN_IF_ERROR(turn.in.mirror->ToDevice(*stream, turn.in.offset, turn.in.bytes()));
    TANDEM_RETURN_IF_ERROR(turn.plan->Launch(stream->ref(), turn.bindings));
    TANDEM_RETURN_IF_ERROR(turn.out.mirror->ToHost(*stream, turn.out.offset, turn.out.bytes()));
    TANDEM_RETURN_IF_ERROR(stream->Enqueue([out = turn.out, sum, wrong] {
      bool same = true;
      for (size_t e = 0; e < out.count; ++e) same = same && LoadAsFloat(out.data(), out.dtype, e) == sum;
      if (!same) wrong->fetch_add(1);
    }));
    if ((i + 1) % ahead == 0 || i + 1 == times)
      TANDEM_RETURN_IF_ERROR(stream->Synchronize(Milliseconds(60000)));
  }
  for (const Turn& turn : turns) TANDEM_RETURN_IF_ERROR(turn.plan->Wait(Milliseconds(60000)));
  (*reply)["wrong"] = wrong->load();
  return Status::Ok();
}

}  // namespace tandem::driver
