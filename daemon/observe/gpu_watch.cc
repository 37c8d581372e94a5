#include "daemon/observe/gpu_watch.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "common/exceptions.h"
#include "common/log.h"

namespace tandem::daemon {
namespace {

constexpr std::chrono::seconds kInterval{1};

}  // namespace

std::vector<int> ExpectedLinks(const Topology& topology, const std::vector<GpuReading>& first) {
  std::vector<int> expected(first.size(), 0);
  for (size_t gpu = 0; gpu < first.size(); ++gpu) {
    expected[gpu] = first[gpu].active_links.value_or(0);
    for (size_t peer = 0; peer < first.size() && gpu < topology.gpus.size(); ++peer) {
      const GpuInfo& other = topology.gpus[peer];
      if (other.model == topology.gpus[gpu].model)
        expected[gpu] = std::max(expected[gpu], other.switch_links);
    }
  }
  return expected;
}

GpuWatch::GpuWatch(std::unique_ptr<GpuHealthSource> source, OnFault on_fault)
    : source_(std::move(source)), on_fault_(std::move(on_fault)) {}

Result<std::unique_ptr<GpuWatch>> GpuWatch::Start(std::unique_ptr<GpuHealthSource> source,
                                                  const Topology& topology, OnFault on_fault) {
  std::unique_ptr<GpuWatch> watch(new GpuWatch(std::move(source), std::move(on_fault)));
  std::vector<GpuReading> first = watch->source_->Read();
  const std::vector<int> expected = ExpectedLinks(topology, first);
  {
    MutexLock lock(watch->mutex_);
    for (size_t gpu = 0; gpu < first.size(); ++gpu) {
      GpuCondition condition;
      condition.expected_links = expected[gpu];
      condition.errors_at_start = first[gpu].link_errors.value_or(NvmlLinkErrors());
      watch->conditions_.push_back(std::move(condition));
    }
  }
  watch->Take(std::move(first));
  TANDEM_ASSIGN_OR_RETURN(watch->thread_,
                          StartThread("the GPUs' health", [own = watch.get()] { own->Run(); }));
  return watch;
}

GpuWatch::~GpuWatch() {
  {
    MutexLock lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void GpuWatch::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    const auto next = std::chrono::steady_clock::now() + kInterval;
    while (!stops_ && changed_.wait_until(lock.fused(), next) != std::cv_status::timeout) {
    }
    if (stops_) return;
    lock.Unlock();
    Take(source_->Read());
    lock.Lock();
  }
}

void GpuWatch::Take(std::vector<GpuReading> readings) {
  std::set<std::pair<int, uint32_t>> faults;  // each once: a GPU may repeat one many times a second
  {
    MutexLock lock(mutex_);
    for (size_t gpu = 0; gpu < conditions_.size() && gpu < readings.size(); ++gpu) {
      for (const uint32_t xid : Update(std::move(readings[gpu]), &conditions_[gpu]))
        faults.emplace(static_cast<int>(gpu), xid);
    }
  }
  for (const auto& [gpu, xid] : faults) {
    log::Error("GPU " + std::to_string(gpu) + " had XID " + std::to_string(xid));
    on_fault_(gpu, xid);
  }
}

std::vector<GpuCondition> GpuWatch::Conditions() {
  MutexLock lock(mutex_);
  return conditions_;
}

void GpuWatch::Acknowledge(int gpu) {
  MutexLock lock(mutex_);
  if (gpu >= 0 && static_cast<size_t>(gpu) < conditions_.size())
    conditions_[static_cast<size_t>(gpu)].xid = 0;
}

}  // namespace tandem::daemon
