// Plans and launches of the C interface.
#include <array>

#include "client/lib/c_api/c_handles.h"
#include "client/lib/plan_json.h"
#include "ipc/channel_layout.h"

using namespace tandem;     // NOLINT: this file is all glue
using namespace tandem::c;  // NOLINT

namespace {

// A launch's bindings on the stack, since the launch path allocates nothing. A missing array binds nothing.
// The array holds one entry more than the maximum, so that a launch with too many bindings is still refused
// for its count.
class Bindings {
 public:
  Bindings(const tandem_binding* bindings, size_t count) : count_(std::min(count, all_.size())) {
    for (size_t i = 0; bindings != nullptr && i < count_; ++i) {
      const tandem_memory* memory = bindings[i].memory;
      all_[i] = {memory == nullptr ? nullptr : memory->memory.get(), bindings[i].offset,
                 memory == nullptr ? bindings[i].pointer : nullptr};
    }
  }
  Bindings(void* const* pointers, size_t count) : count_(std::min(count, all_.size())) {
    for (size_t i = 0; pointers != nullptr && i < count_; ++i) all_[i] = {nullptr, 0, pointers[i]};
  }
  operator std::span<const Binding>() const {
    return {all_.data(), count_};
  }  // NOLINT(google-explicit-constructor)

 private:
  std::array<Binding, kMaxBindings + 1> all_;
  const size_t count_;
};

LaunchOptions Options(int64_t deadline_ms, const char* tag) {
  LaunchOptions options;
  options.deadline = Milliseconds(deadline_ms);
  options.tag = Text(tag);
  return options;
}

tandem_status* Launch(tandem_plan* plan, StreamRef stream, const Bindings& bindings, int64_t deadline_ms,
                      const char* tag) {
  TANDEM_C_RETURN_IF_NULL({"plan", plan});
  if (deadline_ms < 0) return ToC(BadField("deadline_ms", "is negative: a launch waits for the other ranks"));
  return ToC(plan->plan->Launch(stream, bindings, Options(deadline_ms, tag)));
}

tandem_status* Launch(tandem_plan* plan, StreamRef stream, const Bindings& bindings,
                      const tandem_launch_options* options) {
  TANDEM_C_RETURN_IF_NULL({"plan", plan});
  auto asked = ToLaunchOptions(options);
  TANDEM_C_RETURN_IF_ERROR(asked);
  return ToC(plan->plan->Launch(stream, bindings, *asked));
}

}  // namespace

extern "C" {

tandem_status* tandem_prepare(tandem_group* group, const char* key, const tandem_request* request,
                              int64_t deadline_ms, tandem_plan** plan) try {
  Clear(plan);
  TANDEM_C_RETURN_IF_NULL({"group", group}, {"key", key}, {"request", request}, {"plan", plan});
  auto op = ToRequest(*request);
  TANDEM_C_RETURN_IF_ERROR(op);
  auto prepared = group->group->Prepare(Text(key), *op, ToDeadline(deadline_ms, kDefaultDeadline));
  TANDEM_C_RETURN_IF_ERROR(prepared);
  *plan = new tandem_plan{*std::move(prepared)};
  return nullptr;
}
TANDEM_C_CATCH
void tandem_plan_free(tandem_plan* plan) { delete plan; }
uint64_t tandem_plan_id(const tandem_plan* plan) { return plan == nullptr ? 0 : plan->plan->info().plan_id; }
int tandem_plan_algorithm(const tandem_plan* plan) {
  return plan == nullptr ? TANDEM_ALGORITHM_AUTO : static_cast<int>(plan->plan->info().algorithm);
}
const char* tandem_plan_reason(const tandem_plan* plan) {
  return plan == nullptr ? "" : plan->plan->info().reason.c_str();
}
const char* tandem_plan_summary(const tandem_plan* plan) {
  return plan == nullptr ? "" : plan->plan->info().summary.c_str();
}
const char* tandem_plan_explanation(tandem_plan* plan) {
  if (plan == nullptr) return "";
  IgnoreExceptions([plan] {
    std::call_once(plan->explanation_made, [plan] { plan->explanation = Explain(plan->plan->info()); });
  });
  return plan->explanation.c_str();
}
const char* tandem_plan_json(tandem_plan* plan) {
  if (plan == nullptr) return "{}";
  IgnoreExceptions([plan] {
    std::call_once(plan->json_made, [plan] { plan->json = client::PlanJson(plan->plan->info()); });
  });
  return plan->json.empty() ? "{}" : plan->json.c_str();
}
size_t tandem_plan_slots(const tandem_plan* plan) {
  return plan == nullptr ? 0 : plan->plan->info().slot_bytes.size();
}
uint64_t tandem_plan_slot_bytes(const tandem_plan* plan, size_t slot) {
  return slot < tandem_plan_slots(plan) ? plan->plan->info().slot_bytes[slot] : 0;
}

tandem_status* tandem_launch(tandem_plan* plan, tandem_stream* stream, const tandem_binding* bindings,
                             size_t count, int64_t deadline_ms, const char* tag) try {
  TANDEM_C_RETURN_IF_NULL({"stream", stream});
  return Launch(plan, stream->stream.get(), Bindings(bindings, count), deadline_ms, tag);
}
TANDEM_C_CATCH
tandem_status* tandem_launch_cuda(tandem_plan* plan, void* cuda_stream, const tandem_binding* bindings,
                                  size_t count, int64_t deadline_ms, const char* tag) try {
  return Launch(plan, StreamRef::Cuda(cuda_stream), Bindings(bindings, count), deadline_ms, tag);
}
TANDEM_C_CATCH
tandem_status* tandem_launch_cuda_pointers(tandem_plan* plan, void* cuda_stream, void* const* pointers,
                                           size_t count, int64_t deadline_ms, const char* tag) try {
  return Launch(plan, StreamRef::Cuda(cuda_stream), Bindings(pointers, count), deadline_ms, tag);
}
TANDEM_C_CATCH
tandem_status* tandem_launch_with_options(tandem_plan* plan, tandem_stream* stream,
                                          const tandem_binding* bindings, size_t count,
                                          const tandem_launch_options* options) try {
  TANDEM_C_RETURN_IF_NULL({"stream", stream});
  return Launch(plan, stream->stream.get(), Bindings(bindings, count), options);
}
TANDEM_C_CATCH
tandem_status* tandem_launch_cuda_with_options(tandem_plan* plan, void* cuda_stream,
                                               const tandem_binding* bindings, size_t count,
                                               const tandem_launch_options* options) try {
  return Launch(plan, StreamRef::Cuda(cuda_stream), Bindings(bindings, count), options);
}
TANDEM_C_CATCH
tandem_status* tandem_launch_cuda_pointers_with_options(tandem_plan* plan, void* cuda_stream,
                                                        void* const* pointers, size_t count,
                                                        const tandem_launch_options* options) try {
  return Launch(plan, StreamRef::Cuda(cuda_stream), Bindings(pointers, count), options);
}
TANDEM_C_CATCH
tandem_status* tandem_launch_without_stream(tandem_plan* plan, const tandem_binding* bindings, size_t count,
                                            int64_t deadline_ms, const char* tag, uint64_t* launch) try {
  TANDEM_C_RETURN_IF_NULL({"plan", plan}, {"launch", launch});
  if (deadline_ms < 0) return ToC(BadField("deadline_ms", "is negative: a launch waits for the other ranks"));
  auto launched = plan->plan->LaunchWithoutStream(Bindings(bindings, count), Options(deadline_ms, tag));
  TANDEM_C_RETURN_IF_ERROR(launched);
  *launch = *launched;
  return nullptr;
}
TANDEM_C_CATCH
tandem_status* tandem_wait_launch(tandem_plan* plan, uint64_t launch, int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"plan", plan});
  return ToC(plan->plan->WaitLaunch(launch, ToDeadline(deadline_ms, kDefaultWaitDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_plan_wait(tandem_plan* plan, int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"plan", plan});
  return ToC(plan->plan->Wait(ToDeadline(deadline_ms, kDefaultWaitDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_plan_query(tandem_plan* plan, int* ended) try {
  TANDEM_C_RETURN_IF_NULL({"plan", plan}, {"ended", ended});
  auto result = plan->plan->Query();
  TANDEM_C_RETURN_IF_ERROR(result);
  *ended = *result ? 1 : 0;
  return nullptr;
}
TANDEM_C_CATCH
tandem_status* tandem_plan_release(tandem_plan* plan) try {
  TANDEM_C_RETURN_IF_NULL({"plan", plan});
  return ToC(plan->plan->Release());
}
TANDEM_C_CATCH

}  // extern "C"
