// The ranges that an injected profiler sees: their names, and that each that begins ends, on its thread.
#include "engine/launch/profiler_range.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/tests/gather_fixture.h"

namespace tandem::engine {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAreArray;

// The library beside this program; NVTX and ProfilerRange look once, at their first range.
void* Injected() {
  static void* const library = [] {
    const std::string path =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libtandem_nvtx_injection.so")
            .string();
    ::setenv("NVTX_INJECTION64_PATH", path.c_str(), 1);
    return ::dlopen(path.c_str(), RTLD_NOW);
  }();
  return library;
}

std::vector<std::string> Take() {
  auto take = reinterpret_cast<void (*)(std::vector<std::string>*)>(::dlsym(Injected(), "TakeNvtxNotes"));
  std::vector<std::string> notes;
  if (take != nullptr) take(&notes);
  return notes;
}

TEST(ProfilerRangeTest, IsNamedByItsLaunchAndEndsWithItsScope) {
  ASSERT_NE(Injected(), nullptr) << ::dlerror();
  Take();
  {
    ProfilerRange outer("start", 12, 5);
    { ProfilerRange inner("start", uint64_t{1} << 63, 0); }
    EXPECT_THAT(Take(),
                ElementsAre("start plan 12 launch 5", "start plan 9223372036854775808 launch 0", "pop"));
  }
  EXPECT_THAT(Take(), ElementsAre("pop"));
}

class LaunchRangeTest : public GatherTest {};

// One range a launch and engine, around what the engine's thread does to start it.
TEST_F(LaunchRangeTest, EachLaunchIsARangeOfEachEngine) {
  ASSERT_NE(Injected(), nullptr) << ::dlerror();
  constexpr int kLaunches = 3;
  Open();
  const uint64_t plan = AddGatherPlan();
  Take();
  for (int i = 0; i < kLaunches; ++i) LaunchWell(plan);
  // An engine with an empty queue has left the last one's range.
  for (int gpu : gpus_) ASSERT_TRUE(node_.AwaitQueued(gpu, 0));
  std::vector<std::string> expected(kLaunches * gpus_.size(), "pop");
  for (int i = 1; i <= kLaunches; ++i) {
    expected.insert(expected.end(), gpus_.size(),
                    "start plan " + std::to_string(plan) + " launch " + std::to_string(i));
  }
  EXPECT_THAT(Take(), UnorderedElementsAreArray(expected));
}

}  // namespace
}  // namespace tandem::engine
