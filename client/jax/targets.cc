// The targets of XLA's foreign function interface, and the functions for the Python package. No exception leaves
// them.
#include <new>
#include <utility>
#include <vector>

#include "client/jax/plans.h"
#include "xla/ffi/api/ffi.h"

namespace tandem::jax_calls {
namespace {

namespace ffi = xla::ffi;

// A place of a compiled program on the host backend.
struct CallSite {
  static inline ffi::TypeId id = {};
  int64_t number = 0;
};
constexpr ffi::TypeInfo kCallSiteInfo = ffi::MakeTypeInfo<CallSite>();

// Its text lies in the string itself.
ffi::Error NoMemory() { return ffi::Error(ffi::ErrorCode::kResourceExhausted, "no memory"); }

ffi::Error ErrorOf(const CallFailure& failure) noexcept {
  if (failure.code == TANDEM_OK) return ffi::Error::Success();
  try {
    return ffi::Error(static_cast<ffi::ErrorCode>(failure.code), "Tandem: " + failure.text);
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
}

// Operands and results in the order of the plan's slots. False where XLA does not give them.
bool FindSlots(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
               std::vector<HostSlot>* slots) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto operand = operands.get<ffi::AnyBuffer>(i);
    if (operand.has_error()) return false;
    slots->push_back({operand->untyped_data(), operand->size_bytes(), false});
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (result.has_error()) return false;
    slots->push_back({(*result)->untyped_data(), (*result)->size_bytes(), true});
  }
  return true;
}

const CallFailure kNoSlots = {TANDEM_INTERNAL, "XLA does not give a call's operands"};

ffi::Error CudaCall(void* stream, int64_t plan, int64_t rows, ffi::RemainingArgs operands,
                    ffi::RemainingRets results) {
  try {
    std::vector<HostSlot> slots;
    if (!FindSlots(operands, results, &slots)) return ErrorOf(kNoSlots);
    std::vector<void*> pointers;
    pointers.reserve(slots.size());
    for (const HostSlot& slot : slots) pointers.push_back(slot.data);
    return ErrorOf(JaxPlans::Get().LaunchOnCuda(plan, rows, stream, pointers));
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
}

ffi::ErrorOr<std::unique_ptr<CallSite>> Instantiate(int64_t plan, int64_t rows) {
  try {
    auto site = std::make_unique<CallSite>();
    site->number = JaxPlans::Get().CountSite(plan, rows);
    return site;
  } catch (const std::bad_alloc&) {
    return ffi::Unexpected(NoMemory());
  }
}

ffi::Future HostCallOf(CallSite* site, int64_t plan, int64_t rows, ffi::RemainingArgs operands,
                       ffi::RemainingRets results) {
  ffi::Promise promise;
  ffi::Future future(promise);
  try {
    HostCall call;
    call.name = {plan, site->number};
    call.rows = rows;
    call.done = [promise](const CallFailure& failure) mutable {
      if (failure.code == TANDEM_OK) {
        promise.SetAvailable();
      } else {
        promise.SetError(ErrorOf(failure));
      }
    };
    if (FindSlots(operands, results, &call.slots)) {
      JaxPlans::Get().RunOnHost(std::move(call));
    } else {
      call.done(kNoSlots);
    }
  } catch (const std::bad_alloc&) {
    promise.SetError(NoMemory());
  }
  return future;
}

}  // namespace
}  // namespace tandem::jax_calls

using tandem::jax_calls::JaxPlans;

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(tandem_jax_cuda_call, tandem::jax_calls::CudaCall,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<void*>>()
                                  .Attr<int64_t>("plan")
                                  .Attr<int64_t>("rows")
                                  .RemainingArgs()
                                  .RemainingRets(),
                              {xla::ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(tandem_jax_host_instantiate, tandem::jax_calls::Instantiate,
                              xla::ffi::Ffi::BindInstantiate().Attr<int64_t>("plan").Attr<int64_t>("rows"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(tandem_jax_host_call, tandem::jax_calls::HostCallOf,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::State<tandem::jax_calls::CallSite>>()
                                  .Attr<int64_t>("plan")
                                  .Attr<int64_t>("rows")
                                  .RemainingArgs()
                                  .RemainingRets());

#pragma GCC visibility pop

int tandem_jax_version(void) { return TANDEM_JAX_VERSION; }

void tandem_jax_use(const tandem_jax_functions* functions) { JaxPlans::Get().Use(*functions); }

uint64_t tandem_jax_open_host_group(const tandem_jax_host_group* group) {
  try {
    return JaxPlans::Get().OpenHostGroup(*group);
  } catch (...) {
    return 0;
  }
}

void tandem_jax_close_host_group(uint64_t group) { JaxPlans::Get().CloseHostGroup(group); }

int tandem_jax_add_plan(int64_t name, tandem_plan* plan, uint64_t host_group) {
  try {
    return JaxPlans::Get().Add(name, plan, host_group) ? 1 : 0;
  } catch (...) {
    return 0;
  }
}

void tandem_jax_remove_plan(int64_t name) { JaxPlans::Get().Remove(name); }

uint64_t tandem_jax_launches(void) { return JaxPlans::Get().launches(); }

void* tandem_jax_site_type_id(void) { return &tandem::jax_calls::CallSite::id; }

const void* tandem_jax_site_type_info(void) { return &tandem::jax_calls::kCallSiteInfo; }
