// Calls of the library where memory, threads, mappings or descriptors run out: each ends in a status.
//
// This program's allocator, pthread_create, mmap, memfd_create and eventfd fail at a place that a test chooses,
// on the test's thread. The allocator fails on the library's own threads, too. A test chooses one place after
// the other until a run meets none.
#include <gtest/gtest.h>

#include "client/tests/exhaustion_calls.h"
#include "client/tests/interposed.h"
#include "tandem/tandem.h"

namespace tandem::client {
namespace {

struct Use {
  const char* name;
  Status (*all)();
};
constexpr Use kSession{"session", UseSession};
constexpr Use kClientPlans{"client plans", UseClientPlans};
constexpr Use kCInterface{"C interface", UseCInterface};
constexpr Use kBackground{"background", UseInBackground};

class ExhaustionTest : public ::testing::Test {
 protected:
  static constexpr int kMost = 5000;

  // Makes the calls of `use` with one place after the other at which `allowance` runs out. Returns how many
  // places there are.
  static int FailEverywhere(const Use& use, Allowance* allowance) {
    SCOPED_TRACE(use.name);
    for (int place = 0; place < kMost; ++place) {
      *allowance = {.left = place};
      const Status status = use.all();
      const bool met = allowance->met;
      *allowance = {};
      if (!met) {
        EXPECT_TRUE(status.ok()) << status.ToString();
        return place;
      }
      // A step that nobody waits for may do without.
      EXPECT_TRUE(status.ok() || status.code() == Code::kResourceExhausted)
          << place << ": " << status.ToString();
    }
    ADD_FAILURE() << "more than " << kMost << " places";
    return kMost;
  }
  // The same on the threads of the library: the watchdog, the queues of streams, calls in the background. An
  // exception of one of them would end this program.
  static int FailInBackground(const Use& use) {
    SCOPED_TRACE(use.name);
    int place = 0;
    for (; place < kMost && !HasFailure(); ++place) {
      SCOPED_TRACE(place);
      BackgroundAllocations::Allow(place);
      const Status status = use.all();
      const bool met = BackgroundAllocations::Met();
      BackgroundAllocations::Allow(-1);
      EXPECT_TRUE(status.ok() || status.code() == Code::kResourceExhausted) << status.ToString();
      if (!met) break;
      // A failed allocation leaves nothing stuck.
      const Status next = use.all();
      EXPECT_TRUE(next.ok()) << next.ToString();
    }
    EXPECT_LT(place, kMost);
    return place;
  }
};

// Before any other test: the process's queues are made once.
TEST_F(ExhaustionTest, ThreadsRunOut) {
  EXPECT_GE(FailEverywhere(kSession, &Threads()), 1 + 8) << "the watchdog and the host's queues";
  EXPECT_GE(FailEverywhere(kClientPlans, &Threads()), 2) << "the watchdog and reports of failures";
  EXPECT_GE(FailEverywhere(kCInterface, &Threads()), 6);
}

TEST_F(ExhaustionTest, MappingsRunOut) {
  EXPECT_GE(FailEverywhere(kSession, &Mappings()), 3);
  EXPECT_GE(FailEverywhere(kClientPlans, &Mappings()), 3) << "page, words, workspace";
  EXPECT_GE(FailEverywhere(kCInterface, &Mappings()), 6);
}

TEST_F(ExhaustionTest, DescriptorsRunOut) {
  EXPECT_GE(FailEverywhere(kSession, &Descriptors()), 3);
  EXPECT_TRUE(UseClientPlans().ok()) << "it makes none of its own";
  EXPECT_GE(FailEverywhere(kCInterface, &Descriptors()), 5);
}

TEST_F(ExhaustionTest, MemoryRunsOut) { EXPECT_GE(FailEverywhere(kSession, &Allocations()), 50); }

TEST_F(ExhaustionTest, MemoryRunsOutWithClientPlans) {
  EXPECT_GE(FailEverywhere(kClientPlans, &Allocations()), 100);
}

TEST_F(ExhaustionTest, MemoryRunsOutInC) { EXPECT_GE(FailEverywhere(kCInterface, &Allocations()), 150); }

TEST_F(ExhaustionTest, MemoryRunsOutInTheBackground) {
  EXPECT_GE(FailInBackground(kSession) + FailInBackground(kBackground), 20)
      << "the library's threads need no memory";
  FailInBackground(kClientPlans);
}

// The C functions, whose statuses need memory themselves.
TEST_F(ExhaustionTest, AStatusOfCNeedsNoMemory) {
  tandem_client* client = nullptr;
  tandem_status *status = nullptr, *null = nullptr;
  {
    const InCall in(true);
    Allocations() = {.left = 0};
    status = tandem_connect("/nonexistent/directory/of/no/daemon", "a client", 1000, &client);
    null = tandem_client_check(nullptr);
    Allocations() = {};
  }
  EXPECT_EQ(tandem_status_code(status), static_cast<int>(Code::kResourceExhausted));
  EXPECT_STREQ(tandem_status_reason(status), "NO_MEMORY");
  EXPECT_EQ(client, nullptr);
  tandem_status_free(status);
  EXPECT_NE(null, nullptr);
  tandem_status_free(null);
}

}  // namespace
}  // namespace tandem::client
