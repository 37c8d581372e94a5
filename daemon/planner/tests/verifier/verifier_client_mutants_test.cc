// Client placement in the verifier: mistakes that are planted in proved programs are found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "daemon/planner/tests/verifier/client_plans.h"

namespace tandem::plan {
namespace {

bool IsWait(const Step& step) { return std::holds_alternative<WaitStep>(step.work); }

// Each wait for itself. One that may go must give right results under random schedules.
TEST(ClientMutants, DroppedWaits) {
  int caught = 0, harmless = 0;
  for (const Planned& p : ClientPlansOf(3)) {
    for (size_t rank : {size_t{0}, size_t{2}}) {
      Programs original = p.plan.programs;
      const size_t steps = KernelOf(original[rank])->expansion.size();
      for (size_t s = 0; s < steps; ++s) {
        Programs mutant = p.plan.programs;
        Step& step = KernelOf(mutant[rank])->expansion[s];
        if (!IsWait(step)) continue;
        step.work = NopStep{};
        if (!VerifyPrograms(mutant, p.context, kClient).ok()) {
          ++caught;
          continue;
        }
        ++harmless;
        EXPECT_EQ(CompareWithReference(mutant, p.from.requests, {.seeds = {1, 2, 4, 6}}), "")
            << p.from.name << ": passed without the wait of rank " << rank << " step " << s;
      }
    }
  }
  std::printf("dropped waits: %d caught, %d harmless\n", caught, harmless);
  EXPECT_GT(caught, 50);
}

// An engine lets a plan without entry have the bulk area in turn; streams do not.
TEST(ClientMutants, WithoutAnEntry) {
  int mutants = 0, passed_with_engine = 0;
  std::vector<Planned> plans = PlansOf(3);
  for (Planned& p : BulkPlansOf(3)) plans.push_back(std::move(p));
  for (const Planned& p : plans) {
    if (Judge(p.plan.programs, p.context) != "client") continue;
    Programs mutant = p.plan.programs;
    int dropped = 0;
    for (size_t rank = 0; rank < mutant.size(); ++rank) {
      dropped +=
          DropSteps(&mutant, rank, [](const Step& step) { return IsWait(step) && step.label == "entry"; });
    }
    if (dropped == 0) continue;
    ++mutants;
    passed_with_engine += VerifyPrograms(mutant, p.context).ok() ? 1 : 0;
    const Status status = VerifyPrograms(mutant, p.context, kClient);
    EXPECT_FALSE(status.ok()) << p.from.name;
    EXPECT_TRUE(status.detail().reason == "NO_ENTRY" || status.detail().reason == "NOT_CLOSED")
        << p.from.name << ": " << status.ToString();
  }
  std::printf("no entry: %d mutants, %d of them with engines in order\n", mutants, passed_with_engine);
  EXPECT_GT(mutants, 10);
  EXPECT_GT(passed_with_engine, 0);
}

// A word that nobody awaits in its launch may come when the next launch has zeroed it.
TEST(ClientMutants, WordsThatNobodyAwaits) {
  int mutants = 0;
  for (const Planned& p : FusedPlansOfClients(3)) {
    for (size_t rank = 0; rank < p.plan.programs.size(); ++rank) {
      Programs mutant = p.plan.programs;
      CollectiveStep* kernel = KernelOf(mutant[rank]);
      const auto index = static_cast<uint16_t>(kernel->first_signal + kernel->signal_count++);
      const int words = std::max<int>(mutant[rank].signal_count, index + 1);
      for (RankProgram& program : mutant) program.signal_count = words;
      Step signal;
      signal.label = "late";
      signal.work = SignalStep{static_cast<uint8_t>((rank + 1) % mutant.size()), index};
      kernel->expansion.push_back(signal);
      ++mutants;
      EXPECT_TRUE(VerifyPrograms(mutant, p.context).ok()) << p.from.name << ": launch numbers allow it";
      EXPECT_EQ(VerifyPrograms(mutant, p.context, kClient).detail().reason, "UNAWAITED") << p.from.name;
    }
  }
  EXPECT_GT(mutants, 9);
}

// A launch that counts without having met all peers lets the next one overtake them.
TEST(ClientMutants, CountingWithoutClosing) {
  int mutants = 0;
  const std::vector<Planned> plans = ClientPlansOf(3);
  for (const Planned& p : plans) {
    Programs mutant = p.plan.programs;
    if (DropSteps(&mutant, 0, IsWait) == 0) continue;
    ++mutants;
    EXPECT_FALSE(VerifyPrograms(mutant, p.context, kClient).ok()) << p.from.name;
    EXPECT_FALSE(VerifyPair(plans[0].plan.programs, plans[0].context, mutant, p.context, kClient).ok())
        << p.from.name;
  }
  EXPECT_GT(mutants, 12);
}

}  // namespace
}  // namespace tandem::plan
