// File: c_handles.h
//
// Common parts of the C interface: the handles behind its opaque types, statuses, and checks of
// arguments.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/exceptions.h"
#include "tandem/client.h"
#include "tandem/collectives.h"
#include "tandem/host_stream.h"
#include "tandem/tandem.h"

struct tandem_status {
  tandem::Status status;
};
struct tandem_client {
  std::shared_ptr<tandem::Client> client;
  bool has_callback = false;
};
struct tandem_group {
  std::shared_ptr<tandem::Group> group;
  std::unique_ptr<tandem::Collectives> collectives;
  bool is_cuda = false;
};
struct tandem_plan {
  std::shared_ptr<tandem::Plan> plan;
  std::once_flag json_made = {};
  std::string json = {};
  std::once_flag explanation_made = {};
  std::string explanation = {};
};
struct tandem_preview {
  tandem::PlanInfo info;
  std::string json, explanation;
};
struct tandem_memory {
  std::shared_ptr<tandem::Memory> memory;
  std::shared_ptr<tandem::SymmetricTensor> tensor;  // null for memory that is not symmetric
};
struct tandem_stream {
  std::unique_ptr<tandem::HostStream> stream;
};
struct tandem_graph {
  tandem::HostGraphExec exec;
};

namespace tandem::c {

// The one status of calls that have no memory for a status of their own. Freeing it does nothing.
inline tandem_status* NoMemoryStatus() {
  static tandem_status status{OutOfMemory()};
  return &status;
}

// Owned by the caller of the C interface; null for OK.
inline tandem_status* ToC(Status status) {
  if (status.ok()) return nullptr;
  auto* made = new (std::nothrow) tandem_status{std::move(status)};
  return made != nullptr ? made : NoMemoryStatus();
}

inline Status BadField(const std::string& field, const std::string& what) {
  return InvalidArgument(field + " " + what).WithDetail({.reason = "BAD_FIELD", .field = field});
}

struct Argument {
  const char* name;
  const void* pointer;
};
// INVALID_ARGUMENT that names the first argument that is NULL; null if none is.
inline tandem_status* NullAmong(std::initializer_list<Argument> arguments) {
  for (const Argument& argument : arguments) {
    if (argument.pointer == nullptr) return ToC(BadField(argument.name, "is NULL"));
  }
  return nullptr;
}

// Sets an output handle to NULL until the call has succeeded.
template <typename Handle>
void Clear(Handle** output) {
  if (output != nullptr) *output = nullptr;
}

inline std::string Text(const char* text) { return text == nullptr ? std::string() : std::string(text); }

inline std::vector<int64_t> Shape(const int64_t* extents, size_t dims) {
  return extents == nullptr ? std::vector<int64_t>() : std::vector<int64_t>(extents, extents + dims);
}

// A deadline of the C interface: 0 is `standard`, a negative one has passed already.
inline Milliseconds ToDeadline(int64_t deadline_ms, Milliseconds standard) {
  return deadline_ms == 0 ? standard : Milliseconds(std::max<int64_t>(deadline_ms, 0));
}

// Hands a group that has been joined to the caller of the C interface.
tandem_status* Give(Result<std::shared_ptr<Group>> joined, bool is_cuda, tandem_group** group);
Result<DType> ToDType(int dtype, const std::string& field = "dtype");
Result<OpRequest> ToRequest(const tandem_request& from);
// Null: the defaults.
Result<LaunchOptions> ToLaunchOptions(const tandem_launch_options* from);
Result<JoinOptions> ToJoinOptions(const tandem_join_options& from);
Result<CollectiveCall> ToCollectiveCall(const tandem_collective& from);
// Fills the caller's struct, as far as it has the fields.
Status WriteUsage(const Result<MemoryUsage>& from, tandem_memory_usage* usage);

}  // namespace tandem::c

#define TANDEM_C_RETURN_IF_NULL(...) \
  if (tandem_status* wrong = tandem::c::NullAmong({__VA_ARGS__}); wrong != nullptr) return wrong
// Behind the body of a function that returns a status: `tandem_status* f() try { … } TANDEM_C_CATCH`.
#define TANDEM_C_CATCH                                    \
  catch (...) {                                           \
    return tandem::c::ToC(::tandem::StatusOfException()); \
  }
#define TANDEM_C_RETURN_IF_ERROR(result) \
  if (!(result).ok()) return tandem::c::ToC((result).status())
