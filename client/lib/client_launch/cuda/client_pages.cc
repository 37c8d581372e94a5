#include "client/lib/client_launch/cuda/client_pages.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "client/lib/base/deferred_reclaimer.h"
#include "client/lib/cuda/context_scope.h"
#include "client/lib/cuda/service_stream.h"
#include "common/unique_fd.h"

namespace tandem::client {
namespace {

constexpr size_t kPage = 4096;
constexpr auto kServiceTime = std::chrono::seconds(2);

// Lets go of what needs the driver, on a thread that may wait.
struct DeviceRemains {
  std::shared_ptr<cuda::CudaDevice> device;
  std::shared_ptr<cuda::VmmAllocation> memory;
  CUevent order = nullptr;

  ~DeviceRemains() {
    SlowCallScope scope(device->driver());
    if (device->Enter().ok() && order != nullptr) (void)device->driver().EventDestroy(order);
    memory.reset();
  }
};

}  // namespace

Result<std::unique_ptr<ClientPages>> ClientPages::Make(std::shared_ptr<cuda::CudaDevice> device,
                                                       ClientDevice& pins, const std::string& gpu_uuid,
                                                       VerdictPage verdict) {
  static_assert(sizeof(HostPage) <= kPage);
  SlowCallScope scope(device->driver());
  TANDEM_RETURN_IF_ERROR(device->Enter());
  std::unique_ptr<ClientPages> made(new ClientPages);
  made->device_ = device;
  made->verdict_ = std::move(verdict);
  TANDEM_ASSIGN_OR_RETURN(const UniqueFd fd, CreateSealedMemfd("tandem-launch-report", kPage));
  TANDEM_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd.get(), 0, kPage, true));
  made->host_ = std::make_shared<Mapping>(std::move(mapping));
  TANDEM_ASSIGN_OR_RETURN(made->host_pin_, pins.PinWords(gpu_uuid, made->host_->data(), kPage));
  auto* const verdict_data = reinterpret_cast<std::byte*>(made->verdict_.layout());
  TANDEM_ASSIGN_OR_RETURN(made->verdict_pin_, pins.PinWords(gpu_uuid, verdict_data, kVerdictPageBytes));
  TANDEM_ASSIGN_OR_RETURN(auto memory, cuda::VmmAllocation::Create(device, sizeof(DevicePage)));
  made->memory_ = std::make_shared<cuda::VmmAllocation>(std::move(memory));
  TANDEM_ASSIGN_OR_RETURN(made->order_, device->driver().EventCreate(CU_EVENT_DISABLE_TIMING));
  TANDEM_RETURN_IF_ERROR(device->driver().MemsetD8Async(reinterpret_cast<CUdeviceptr>(made->memory_->data()),
                                                        0, sizeof(DevicePage), device->service_stream()));
  TANDEM_RETURN_IF_ERROR(made->AwaitService());
  return made;
}

ClientPages::~ClientPages() {
  auto remains = std::make_shared<DeviceRemains>();
  remains->device = device_;
  remains->memory = std::move(memory_);
  remains->order = order_;
  DeferredReclaimer& reclaimer = DeferredReclaimer::Get();
  reclaimer.Discard(std::move(remains));
  reclaimer.Keep(std::move(host_), std::move(host_pin_));
  reclaimer.Keep(std::make_shared<VerdictPage>(verdict_), std::move(verdict_pin_));
}

cuda::GroupDeviceState ClientPages::group_state() const {
  cuda::GroupDeviceState group_state = {};
  group_state.counters = counters()->counters;
  group_state.failed = &counters()->failed;
  group_state.looked = &counters()->looked;
  group_state.pushed = counters()->pushed;
  group_state.first_aborted_launch =
      reinterpret_cast<const uint64_t*>(&verdict_.layout()->first_aborted_launch);
  group_state.report = &host()->report;
  return group_state;
}

Status ClientPages::AwaitService() const {
  TANDEM_ASSIGN_OR_RETURN(const bool done,
                          AwaitServiceStream(*device_, std::chrono::steady_clock::now() + kServiceTime));
  return done ? Status::Ok() : DeadlineExceeded("the GPU does not answer");
}

Status ClientPages::StartCount() {
  std::lock_guard lock(mutex_);
  return StartCountLocked();
}

Status ClientPages::StartCountLocked() {
  if (kept_ != nullptr) return Status::Ok();  // the last count stands
  SlowCallScope scope(device_->driver());
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  const auto to = reinterpret_cast<CUdeviceptr>(&host()->count);
  const auto from = reinterpret_cast<CUdeviceptr>(counters()->counters);
  return device_->driver().MemcpyAsync(to, from, sizeof(uint64_t), device_->service_stream());
}

uint64_t ClientPages::LastCount() const {
  return std::atomic_ref<uint64_t>(host()->count).load(std::memory_order_acquire);
}

Result<uint64_t> ClientPages::ReadHighestCount() {
  SlowCallScope scope(device_->driver());
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  uint64_t* const read = host()->counters;
  TANDEM_RETURN_IF_ERROR(device_->driver().MemcpyAsync(
      reinterpret_cast<CUdeviceptr>(read), reinterpret_cast<CUdeviceptr>(counters()->counters),
      sizeof(counters()->counters), device_->service_stream()));
  TANDEM_RETURN_IF_ERROR(AwaitService());
  return *std::max_element(read, read + cuda::kLaunchCounters);
}

Status ClientPages::Restart(uint64_t count) {
  SlowCallScope scope(device_->driver());
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  std::fill_n(host()->counters, cuda::kLaunchCounters, count);
  DevicePage& page = *counters();
  TANDEM_RETURN_IF_ERROR(device_->driver().MemcpyAsync(reinterpret_cast<CUdeviceptr>(page.counters),
                                                       reinterpret_cast<CUdeviceptr>(host()->counters),
                                                       sizeof(page.counters), device_->service_stream()));
  TANDEM_RETURN_IF_ERROR(device_->driver().MemsetD8Async(reinterpret_cast<CUdeviceptr>(&page.failed), 0,
                                                         sizeof(page.failed), device_->service_stream()));
  TANDEM_RETURN_IF_ERROR(AwaitService());
  std::atomic_ref<uint64_t>(host()->report.kind).store(0, std::memory_order_release);
  return Status::Ok();
}

Status ClientPages::Vacate() {
  std::lock_guard lock(mutex_);
  if (kept_ == nullptr) {
    // The count of a poll that comes later.
    TANDEM_RETURN_IF_ERROR(StartCountLocked());
    auto kept = std::make_unique<DevicePage>();
    TANDEM_RETURN_IF_ERROR(device_->driver().MemcpyAsync(reinterpret_cast<CUdeviceptr>(kept.get()),
                                                         reinterpret_cast<CUdeviceptr>(counters()),
                                                         sizeof(DevicePage), device_->service_stream()));
    TANDEM_RETURN_IF_ERROR(AwaitService());
    kept_ = std::move(kept);
  }
  return memory_->Vacate();
}

Status ClientPages::Refill() {
  std::lock_guard lock(mutex_);
  if (kept_ == nullptr) return Status::Ok();
  TANDEM_RETURN_IF_ERROR(memory_->RefillAnew());
  TANDEM_RETURN_IF_ERROR(device_->driver().MemcpyAsync(reinterpret_cast<CUdeviceptr>(counters()),
                                                       reinterpret_cast<CUdeviceptr>(kept_.get()),
                                                       sizeof(DevicePage), device_->service_stream()));
  TANDEM_RETURN_IF_ERROR(AwaitService());
  kept_.reset();
  return Status::Ok();
}

Result<uint64_t> ClientPages::ReadCount() {
  TANDEM_RETURN_IF_ERROR(StartCount());
  SlowCallScope scope(device_->driver());
  TANDEM_RETURN_IF_ERROR(AwaitService());
  return LastCount();
}

}  // namespace tandem::client
