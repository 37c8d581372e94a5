// The cost of a push into a channel's ring, with the engine polling (awake) and asleep on its futex.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "bench/host/measure.h"
#include "ipc/channel.h"

namespace {

using namespace tandem;

constexpr uint32_t kEntries = 1024;

void Consume(ChannelConsumer& consumer, std::atomic<uint64_t>& taken, std::atomic<bool>& stop, bool sleeps) {
  LaunchEntry entry;
  while (!stop.load(std::memory_order_relaxed)) {
    if (consumer.Poll(&entry)) {
      taken.fetch_add(1, std::memory_order_release);
    } else if (sleeps) {
      consumer.AnnounceSleep();
      if (!consumer.HasEntry()) {
        timespec limit{0, 50'000'000};
        ::syscall(SYS_futex, consumer.sleep_word(), FUTEX_WAIT, 1, &limit, nullptr, 0);
      }
      consumer.EndSleep();
    } else {
      std::this_thread::yield();
    }
  }
}

int Run(const char* name, bool sleeps, int samples) {
  auto memory = CreateChannelMemory(kEntries);
  if (!memory.ok()) return 1;
  auto producer = ChannelProducer::Map(memory->ring.get(), memory->words.get(), kEntries);
  auto consumer = ChannelConsumer::Map(memory->ring.get(), memory->words.get(), kEntries);
  if (!producer.ok() || !consumer.ok()) return 1;
  std::atomic<uint64_t> taken{0};
  std::atomic<bool> stop{false};
  std::thread engine([&] { Consume(*consumer, taken, stop, sleeps); });
  std::vector<double> times;
  LaunchEntry entry{};
  entry.binding_count = 3;  // A, B and C
  for (int i = 0; i < samples; ++i) {
    if (sleeps) {
      // Its word says that it will sleep; a while later it does.
      while (consumer->sleep_word()->load() == 0) std::this_thread::yield();
      ::usleep(300);
    }
    double start = bench::NowUs();
    Status status = producer->TryPush(&entry);
    double end = bench::NowUs();
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      stop = true;
      engine.join();
      return 1;
    }
    times.push_back(end - start);
    while (taken.load(std::memory_order_acquire) < static_cast<uint64_t>(i + 1)) std::this_thread::yield();
  }
  stop = true;
  engine.join();
  bench::Report(name, times, "us");
  return 0;
}

}  // namespace

int main() {
  return Run("ring_submit_awake_p50_us", false, 20000) + Run("ring_submit_asleep_p50_us", true, 2000);
}
