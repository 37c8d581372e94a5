// File: exceptions.h
//
// Statuses instead of exceptions, at the edges of modules and where threads are made.
#pragma once

#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "tandem/status.h"

namespace tandem {

// RESOURCE_EXHAUSTED, reason NO_MEMORY. Allocates nothing: its texts are short enough to lie in the strings.
inline Status OutOfMemory() {
  return Status(Code::kResourceExhausted, "out of memory").WithDetail({.reason = "NO_MEMORY"});
}

// The status of a thread that cannot be made.
inline Status NoThread(std::string_view thread, const std::string& why) {
  return ResourceExhausted("cannot start the thread of " + std::string(thread) + ": " + why +
                           "; look at the limits of processes (ulimit -u, pids.max) and of memory")
      .WithDetail({.reason = "NO_THREAD"});
}

// The status of the exception that is being handled; for catch (...) alone.
inline Status StatusOfException() noexcept {
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return OutOfMemory();
    } catch (const std::length_error&) {
      return OutOfMemory();
    } catch (const std::system_error& error) {
      return ResourceExhausted(error.what()).WithDetail({.reason = "NO_RESOURCES"});
    } catch (const std::exception& error) {
      return Internal(std::string("an exception: ") + error.what());
    } catch (...) {
      return Internal("an exception");
    }
  } catch (...) {
    return OutOfMemory();
  }
}

// Runs `work`, which has nobody to report to. For destructors: what they leave undone ends with the session.
template <typename Work>
void IgnoreExceptions(Work&& work) noexcept {
  try {
    std::forward<Work>(work)();
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

// A thread that runs `work`. RESOURCE_EXHAUSTED, reason NO_THREAD, where none can be made; `name` names it
// there.
inline Result<std::thread> StartThread(std::string_view name, std::function<void()> work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    return NoThread(name, error.code().message());
  } catch (...) {
    return StatusOfException();
  }
}

}  // namespace tandem

// Behind the body of a function that returns a Status or Result: `Status F() try { … }
// TANDEM_CATCH_TO_STATUS`.
#define TANDEM_CATCH_TO_STATUS            \
  catch (...) {                           \
    return ::tandem::StatusOfException(); \
  }
