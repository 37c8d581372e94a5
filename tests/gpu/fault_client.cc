// A process with a CUDA context that obeys lines on its standard input, and answers each
// with one line of JSON: a neighbour that watches its context, or the culprit. Used by the tests of recovery,
// together with Tandem's clients or alone.
//
//   use ORDINAL              makes the context
//   watch kernel|write|query MILLISECONDS
//                            probes the context again and again in a thread, until it has been lost
//   state                    {"rounds": …, "lost": error name or null, "lost_at": CLOCK_MONOTONIC seconds}
//   fault | spin MS | wait   see fault_kernels.h
//   exit                     ends without touching CUDA again; so does the end of input
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>

#include "tests/gpu/fault_kernels.h"

namespace {

using namespace tandem::faults;  // NOLINT: this file is a shell around them

double Now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::atomic<long> rounds{0};
std::atomic<int> lost{0};
std::atomic<double> lost_at{0};
void Watch(const std::string& how, int milliseconds) {
  int (*probe)() = how == "kernel" ? ProbeByKernel : how == "write" ? ProbeByWrite : ProbeByQuery;
  std::thread([probe, milliseconds] {
    int error = EnterDevice();
    while (true) {
      if (error == 0) error = probe();
      if (error != 0) {
        lost_at = Now();
        lost = error;
        return;
      }
      ++rounds;
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    }
  }).detach();
}

void Answer(double begun, int error) {
  std::printf("{\"error\": %d, \"name\": \"%s\", \"seconds\": %.6f, \"at\": %.6f}\n", error, ErrorName(error),
              Now() - begun, Now());
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command, how;
    long number = 0;
    words >> command;
    const double begun = Now();
    if (command == "use") {
      words >> number;
      Answer(begun, UseDevice(static_cast<int>(number)));
    } else if (command == "watch") {
      words >> how >> number;
      Watch(how, static_cast<int>(number));
      Answer(begun, 0);
    } else if (command == "state") {
      std::string name = lost.load() == 0 ? "null" : std::string("\"") + ErrorName(lost) + "\"";
      std::printf("{\"rounds\": %ld, \"lost\": %s, \"lost_at\": %.6f}\n", rounds.load(), name.c_str(),
                  lost_at.load());
    } else if (command == "fault") {
      Answer(begun, IllegalAccess());
    } else if (command == "spin") {
      words >> number;
      Answer(begun, Spin(number));
    } else if (command == "wait") {
      Answer(begun, WaitForEver());
    } else if (command == "exit") {
      break;
    } else {
      std::printf("{\"error\": -1, \"name\": \"unknown command\"}\n");
    }
  }
  std::fflush(stdout);
  ::_exit(0);
}
