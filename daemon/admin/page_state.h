// File: page_state.h
//
// The state behind the node's page, as one JSON object (docs/monitoring.md). It has an entry for each
// GPU and link, and bounded numbers of all else. Neither job keys nor tokens are in it.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "daemon/admin/admin_service.h"

namespace tandem::daemon {

// The most entries of each kind; `truncated` is true where there are more. Launches are of each GPU.
inline constexpr size_t kPageSessions = 256, kPageGroups = 256, kPageQueue = 256, kPageLaunches = 96;

// Asks the engines for their queues, which takes a second if one of them does not answer.
std::string PageStateText(const AdminSources& sources);

// One text for all who ask within `age`, so that many open pages cost what one costs. Thread-safe; callers
// wait for each other.
class FreshText {
 public:
  FreshText(std::function<std::string()> make, std::chrono::milliseconds age)
      : make_(std::move(make)), age_(age) {}
  std::string Get();

 private:
  const std::function<std::string()> make_;
  const std::chrono::milliseconds age_;
  std::mutex mutex_;
  std::string text_;
  std::chrono::steady_clock::time_point made_;  // at the end of the work; the epoch: never
};

}  // namespace tandem::daemon
