#include "client/lib/base/deferred_reclaimer.h"

#include <pthread.h>

#include <thread>
#include <utility>

#include "client/lib/base/fork_guard.h"
#include "client/lib/base/stream_channel.h"
#include "common/exceptions.h"

namespace tandem::client {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(500);

template <typename T>
void Leak(T object) {
  (void)new T(std::move(object));
}

}  // namespace

DeferredReclaimer& DeferredReclaimer::Get() {
  static auto* reclaimer = new DeferredReclaimer;
  return *reclaimer;
}

DeferredReclaimer::DeferredReclaimer() : born_(ForkCount()) {}

bool DeferredReclaimer::InChild() const { return ForkCount() != born_; }

void DeferredReclaimer::Retire(std::shared_ptr<StreamChannel> channel) {
  if (InChild()) return Leak(std::move(channel));
  std::lock_guard lock(mutex_);
  retired_.push_back({std::move(channel), {}});
  WakeLocked();
}

void DeferredReclaimer::Keep(std::shared_ptr<void> memory, std::shared_ptr<void> pin) {
  if (InChild()) {
    Leak(std::move(memory));
    return Leak(std::move(pin));
  }
  if (pin == nullptr) return;  // ordinary memory: unmapped here
  std::lock_guard lock(mutex_);
  pages_.push_back({std::move(memory), std::move(pin)});
  WakeLocked();
}

void DeferredReclaimer::Discard(std::shared_ptr<void> object) {
  if (InChild()) return Leak(std::move(object));
  std::lock_guard lock(mutex_);
  discarded_.push_back(std::move(object));
  WakeLocked();
}

void DeferredReclaimer::DiscardAfter(std::function<bool()> ended, std::shared_ptr<void> object) {
  if (InChild()) return Leak(std::move(object));
  std::lock_guard lock(mutex_);
  waiting_.push_back({std::move(object), std::move(ended)});
  WakeLocked();
}

void DeferredReclaimer::Watch(std::weak_ptr<StreamChannel> channel) {
  std::lock_guard lock(watched_mutex_);
  std::erase_if(watched_, [](const auto& weak) { return weak.expired(); });
  watched_.push_back(std::move(channel));
}

size_t DeferredReclaimer::kept() const {
  std::lock_guard lock(mutex_);
  return retired_.size() + pages_.size() + waiting_.size() + in_hand_ + discarded_.size() + dropping_;
}

void DeferredReclaimer::SetGrace(std::chrono::milliseconds grace) {
  std::lock_guard lock(mutex_);
  grace_ = grace;
}

void DeferredReclaimer::WakeLocked() {
  if (!running_) {
    IgnoreExceptions([this] {  // without a thread for now, the next object asks again
      std::thread([this] {
        ::pthread_setname_np(::pthread_self(), "tandem-reclaim");
        Run();
      }).detach();
      running_ = true;
    });
  }
  changed_.notify_one();
}

void DeferredReclaimer::Run() {
  while (true) {
    IgnoreExceptions([this] { RunOn(); });
    std::this_thread::sleep_for(kLookEvery);  // without memory for now
  }
}

void DeferredReclaimer::RunOn() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (retired_.empty() && pages_.empty() && waiting_.empty()) {
      changed_.wait(lock, [this] {
        return !discarded_.empty() || !retired_.empty() || !pages_.empty() || !waiting_.empty();
      });
    } else {
      changed_.wait_for(lock, kLookEvery, [this] { return !discarded_.empty(); });
    }
    std::vector<std::shared_ptr<void>> discarded = std::exchange(discarded_, {});
    dropping_ = discarded.size();
    lock.unlock();
    discarded.clear();
    lock.lock();
    dropping_ = 0;
    lock.unlock();
    SweepWaiting();
    Sweep();
    lock.lock();
  }
}

void DeferredReclaimer::SweepWaiting() {
  std::vector<Waiting> waiting;
  {
    std::lock_guard lock(mutex_);
    waiting.swap(waiting_);
    in_hand_ = waiting.size();
  }
  std::erase_if(waiting, [](const Waiting& each) { return each.ended(); });
  std::lock_guard lock(mutex_);
  in_hand_ = 0;
  for (Waiting& left : waiting) waiting_.push_back(std::move(left));
}

void DeferredReclaimer::Sweep() {
  auto now = std::chrono::steady_clock::now();
  std::vector<Retired> over;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(retired_, [&](Retired& retired) {
      if (retired.drained_at == std::chrono::steady_clock::time_point{}) {
        if (retired.channel->Drained()) retired.drained_at = now;
        return false;
      }
      if (now - retired.drained_at <= grace_) return false;
      over.push_back(std::move(retired));
      return true;
    });
    in_hand_ = over.size();
  }
  over.clear();  // their memory comes back through Keep
  std::vector<Pages> pages;
  {
    std::lock_guard lock(mutex_);
    pages.swap(pages_);
    in_hand_ = pages.size();
  }
  if (!pages.empty()) pages = Unpin(std::move(pages));
  std::lock_guard lock(mutex_);
  in_hand_ = 0;
  for (Pages& left : pages) pages_.push_back(std::move(left));
}

std::vector<DeferredReclaimer::Pages> DeferredReclaimer::Unpin(std::vector<Pages> pages) {
  std::vector<std::shared_ptr<StreamChannel>> channels;
  std::vector<std::unique_lock<std::mutex>> idle;  // released before `channels`
  std::lock_guard gate(watched_mutex_);
  for (const auto& weak : watched_) {
    if (auto channel = weak.lock()) channels.push_back(std::move(channel));
  }
  for (const auto& channel : channels) {
    std::unique_lock<std::mutex> lock = channel->LockIdle();
    if (!lock.owns_lock()) return pages;
    idle.push_back(std::move(lock));
  }
  pages.clear();
  return pages;
}

}  // namespace tandem::client
