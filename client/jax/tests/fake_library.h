// File: fake_library.h
//
// Stand-ins for the functions of libtandem.so that calls of tandem.jax need. Handles are addresses of the test's.
#pragma once

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "client/jax/host_calls.h"

namespace tandem::jax_calls {

struct FakeJaxLaunch {
  tandem_plan* plan = nullptr;
  int64_t rows = -1;
  std::vector<const void*> pointers;
};

// One at a time; its members are set before the calls.
struct FakeJaxLibrary {
  static inline FakeJaxLibrary* current = nullptr;
  FakeJaxLibrary() { current = this; }
  ~FakeJaxLibrary() { current = nullptr; }

  tandem_plan* order = nullptr;
  // The names that rank 0 broadcasts; none: what this rank has sent.
  std::vector<CallName> chosen;
  // Runs each launch of another plan: on the bindings' memory. Returns a failure's text, or "".
  std::function<std::string(const FakeJaxLaunch&)> run = [](const FakeJaxLaunch&) { return std::string(); };
  std::vector<FakeJaxLaunch> launches;
  int holds = 0;

  static tandem_status* Fail(const std::string& text) {
    return text.empty() ? nullptr : reinterpret_cast<tandem_status*>(new std::string(text));
  }

  static tandem_status* Launch(tandem_plan* plan, tandem_stream*, const tandem_binding* bindings,
                               size_t count, const tandem_launch_options* options) {
    FakeJaxLaunch launch{plan, options->rows, {}};
    for (size_t i = 0; i < count; ++i) {
      const auto* memory = reinterpret_cast<const std::byte*>(bindings[i].memory);
      launch.pointers.push_back(memory + bindings[i].offset);
    }
    if (plan == current->order) {
      CallName name;
      std::memcpy(&name, launch.pointers[0], sizeof(name));
      if (!current->chosen.empty()) {
        name = current->chosen.front();
        current->chosen.erase(current->chosen.begin());
      }
      std::memcpy(const_cast<void*>(launch.pointers[1]), &name, sizeof(name));
      return nullptr;
    }
    current->launches.push_back(launch);
    return Fail(current->run(launch));
  }

  static tandem_status* LaunchOnCuda(tandem_plan* plan, void*, void* const* pointers, size_t count,
                                     const tandem_launch_options* options) {
    current->launches.push_back({plan, options->rows, std::vector<const void*>(pointers, pointers + count)});
    return Fail(current->run(current->launches.back()));
  }

  tandem_jax_functions Functions() {
    return {
        .launch_with_options = Launch,
        .launch_cuda_pointers_with_options = LaunchOnCuda,
        .capture_hold_begin =
            [](void*, tandem_capture_hold**) {
              ++current->holds;
              return Fail("the stream does not capture");
            },
        .plan_wait = [](tandem_plan*, int64_t) { return static_cast<tandem_status*>(nullptr); },
        .allocate_registered =
            [](tandem_client*, size_t bytes, const char*, tandem_memory** memory) {
              *memory = reinterpret_cast<tandem_memory*>(new std::byte[bytes]);
              return static_cast<tandem_status*>(nullptr);
            },
        .memory_data =
            [](const tandem_memory* memory) {
              return const_cast<void*>(reinterpret_cast<const void*>(memory));
            },
        .memory_free = [](tandem_memory* memory) { delete[] reinterpret_cast<std::byte*>(memory); },
        .stream_create =
            [](tandem_stream** stream) {
              *stream = nullptr;
              return static_cast<tandem_status*>(nullptr);
            },
        .stream_free = [](tandem_stream*) {},
        .status_code = [](const tandem_status*) -> int { return TANDEM_UNAVAILABLE; },
        .status_message =
            [](const tandem_status* status) { return reinterpret_cast<const std::string*>(status)->c_str(); },
        .status_reason = [](const tandem_status*) { return ""; },
        .status_free = [](tandem_status* status) { delete reinterpret_cast<std::string*>(status); },
    };
  }
};

// Outcomes of calls, which end on another thread.
class FakeJaxOutcomes {
 public:
  std::function<void(const CallFailure&)> Keep(int call) {
    return [this, call](const CallFailure& failure) {
      const std::lock_guard lock(mutex_);
      ended_.push_back({call, failure});
      changed_.notify_all();
    };
  }
  // Waits until so many calls have ended, and returns them in the order of their ends.
  std::vector<std::pair<int, CallFailure>> Await(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_.size() >= count; });
    return ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<int, CallFailure>> ended_;
};

}  // namespace tandem::jax_calls
