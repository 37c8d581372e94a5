// File: supervisor_fixture.h
//
// A supervisor over fake engines' processes, and a listener that notes what it hears.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "common/shared_memory.h"
#include "daemon/supervisor/supervisor.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {

using std::chrono::milliseconds;

class EventRecorder : public EngineListener {
 public:
  // The engine's status in OnEngineDown; set before the first engine starts.
  Engines* engines = nullptr;
  bool context_lost() {
    std::lock_guard<std::mutex> lock(mutex_);
    return context_lost_;
  }

  // Within OnEngineUp, if > 0: the engine must answer, before anything watches it.
  milliseconds demand_when_up{0};

  void OnEngineUp(int gpu, uint64_t generation) override {
    if (demand_when_up.count() > 0) engines->DemandAnswer(gpu, demand_when_up);
    Note("up " + std::to_string(generation));
  }
  void OnEngineDown(int gpu, uint64_t generation, const std::string& reason) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      context_lost_ = engines != nullptr && engines->StatusOf(gpu).context_lost;
    }
    Note("down " + std::to_string(generation) + " " + reason);
  }
  void OnLaunchDone(int, const engine::v1::LaunchDone& done) override {
    Note("done " + std::to_string(done.launch_id()));
  }
  // Once set, MayRest answers true once.
  std::atomic<bool> lets_rest{false};
  bool MayRest(int, uint64_t generation) override {
    if (!lets_rest.exchange(false)) return false;
    Note("rests " + std::to_string(generation));
    return true;
  }
  bool Noted(const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::any_of(notes_.begin(), notes_.end(),
                       [&](const std::string& note) { return note.find(text) != std::string::npos; });
  }
  void OnLaunchFailed(int, const engine::v1::LaunchFailed&) override {}
  void OnLate(int, const engine::v1::Late&) override {}
  void OnPeerSilent(int, const engine::v1::PeerSilent&) override {}

  // Waits until something that contains `text` has been noted.
  bool Await(const std::string& text) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      for (const auto& note : notes_) {
        if (note.find(text) != std::string::npos) return true;
      }
      return false;
    });
  }

 private:
  void Note(std::string text) {
    std::lock_guard<std::mutex> lock(mutex_);
    notes_.push_back(std::move(text));
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> notes_;
  bool context_lost_ = false;
};

// A directory in which an MPS control daemon seems to answer.
struct MpsDirectory {
  MpsDirectory() {
    char name[] = "/tmp/tandem-mps-test.XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    path = name;
    listener.Reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (path + "/control").c_str());
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener.get(), 16), 0);
  }
  ~MpsDirectory() { std::filesystem::remove_all(path); }
  std::string path;
  UniqueFd listener;
};

class SupervisorTest : public testing::Test {
 protected:
  void Start(const std::vector<std::string>& modes) {
    settings_.program = TANDEM_FAKE_ENGINE;
    settings_.restart.backoff_initial = milliseconds(1);
    settings_.restart.backoff_max = milliseconds(5);
    std::vector<EngineSlot> slots;
    for (const auto& mode : modes) {
      slots.push_back({mode, 1 << 20, CreateSealedMemfd("stats", 4096).value(), environment_});
    }
    supervisor_ =
        Supervisor::Create(settings_, CreateSealedMemfd("log", 4096).value(), std::move(slots)).value();
    listener_.engines = supervisor_.get();
    supervisor_->Start(listener_);
  }
  // Neither silence nor a second life: what ends an engine, and for good, is a demand that it does not
  // answer.
  void OnlyDemandsEndAnEngine() {
    settings_.ping_interval = settings_.silence_limit = milliseconds(60000);
    settings_.restart.crash_loop_count = 1;
  }
  static bool Eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 30000 && !holds(); ++i) std::this_thread::sleep_for(milliseconds(1));
    return holds();
  }
  bool AwaitState(EngineState state) {
    return Eventually([&] { return supervisor_->StatusOf(0).state == state; });
  }
  // An engine that this machine lets run only after the snapshot's deadline of 1 s is asked again.
  Result<std::unique_ptr<engine::v1::Queue>> QueueOf(int gpu) {
    auto queue = supervisor_->QueueSnapshot(gpu);
    Eventually([&] {
      if (queue.status().code() == Code::kDeadlineExceeded) queue = supervisor_->QueueSnapshot(gpu);
      return queue.status().code() != Code::kDeadlineExceeded;
    });
    return queue;
  }

  EngineSettings settings_;
  std::vector<std::string> environment_;
  EventRecorder listener_;
  std::unique_ptr<Supervisor> supervisor_;
};

inline engine::v1::Command Ping() {
  engine::v1::Command command;
  command.mutable_ping();
  return command;
}

}  // namespace tandem::daemon
