// A library for LD_PRELOAD that stops threads at random behind the calls by which threads and processes meet:
// sockets, mutexes, futexes, beginnings of threads. Orders of events that an idle machine shows once in a
// thousand runs occur in one of ten. A test or code that fails then relies on the pace of the machine.
// tests/run_delayed runs the tests with it.
//
//   TANDEM_DELAY_PERCENT  the part of the calls with a delay behind them (default 3; mutexes and yields less)
//   TANDEM_DELAY_US       the longest usual delay (default 3000); one delay in fifty is up to fifty times
//                         as long
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace {

constexpr uint64_t kRarely = 50;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// The threads' order of numbers does not matter: no run is like another.
uint64_t Random() {
  static thread_local uint64_t state = 0;
  if (state == 0) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    state = (static_cast<uint64_t>(now.tv_nsec) * 6364136223846793005u ^
             static_cast<uint64_t>(::getpid()) << 32 ^ reinterpret_cast<uintptr_t>(&state)) |
            1;
  }
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state >> 11;
}

// 0 until this library's constructors have run.
const uint64_t percent = FromEnvironment("TANDEM_DELAY_PERCENT", 3),
               longest_us = FromEnvironment("TANDEM_DELAY_US", 3000);

void Delay() {
  if (longest_us == 0 || Random() % 100 >= percent) return;
  const uint64_t us = Random() % (Random() % kRarely == 0 ? kRarely * longest_us : longest_us);
  const timespec nap{static_cast<time_t>(us / 1'000'000), static_cast<long>(us % 1'000'000 * 1000)};
  ::clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, nullptr);
}

// For calls that are made all the time.
template <unsigned kEvery>
void DelayNowAndThen() {
  static thread_local unsigned calls = 0;
  if (++calls % kEvery == 0) Delay();
}

// Without the guard that a static variable with a constructor has: threads wait for such guards by the calls
// of this library.
template <typename Function>
Function* Real(std::atomic<Function*>& kept, const char* name) {
  Function* function = kept.load(std::memory_order_relaxed);
  if (function == nullptr) {
    function = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
    kept.store(function, std::memory_order_relaxed);
  }
  return function;
}
#define REAL(name)                                   \
  static std::atomic<decltype(name)*> kept{nullptr}; \
  auto* const real = Real(kept, #name)

struct Beginning {
  void* (*function)(void*);
  void* argument;
};

void* Begin(void* from) {
  const Beginning beginning = *std::unique_ptr<Beginning>(static_cast<Beginning*>(from));
  for (int i = 0; i < 4; ++i) Delay();
  return beginning.function(beginning.argument);
}

}  // namespace

// The names and types are the C library's.
extern "C" {

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  REAL(recvmsg);
  const ssize_t result = real(fd, message, flags);
  Delay();
  return result;
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  REAL(sendmsg);
  Delay();
  const ssize_t result = real(fd, message, flags);
  Delay();
  return result;
}

int poll(pollfd* files, nfds_t count, int timeout_ms) {
  REAL(poll);
  const int result = real(files, count, timeout_ms);
  Delay();
  return result;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  REAL(pthread_mutex_lock);
  DelayNowAndThen<16>();
  return real(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  REAL(pthread_mutex_unlock);
  const int result = real(mutex);
  DelayNowAndThen<16>();
  return result;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*),
                   void* argument) noexcept {
  REAL(pthread_create);
  auto beginning = std::make_unique<Beginning>(Beginning{function, argument});
  const int result = real(thread, attributes, Begin, beginning.get());
  if (result == 0) beginning.release();  // NOLINT(bugprone-unused-return-value): the thread has it
  return result;
}

int sched_yield() noexcept {
  REAL(sched_yield);
  DelayNowAndThen<1024>();
  return real();
}

long syscall(long number, ...) noexcept {
  REAL(syscall);
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  const long result =
      real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
  if (number == SYS_futex || number == SYS_futex_waitv) Delay();
  return result;
}
}
