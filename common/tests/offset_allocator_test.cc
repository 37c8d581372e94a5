#include "common/offset_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace tandem {
namespace {

TEST(OffsetAllocator, AlignsAndRefusesWhatDoesNotFit) {
  OffsetAllocator allocator(4096);
  EXPECT_EQ(*allocator.Allocate(1), 0u);
  EXPECT_EQ(*allocator.Allocate(300), 256u);
  EXPECT_EQ(*allocator.Allocate(1, 1024), 1024u);
  EXPECT_EQ(allocator.used(), 256u + 512u + 256u);
  const auto full = allocator.Allocate(4096);
  EXPECT_EQ(full.status().code(), Code::kResourceExhausted);
  EXPECT_EQ(full.status().detail().limit, 4096);
  EXPECT_EQ(full.status().detail().usage, 1024);
  EXPECT_EQ(allocator.Allocate(UINT64_MAX).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(allocator.Allocate(1, 3).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(allocator.Free(128).code(), Code::kNotFound);
}

TEST(OffsetAllocator, CoalescesInEveryOrder) {
  for (int order = 0; order < 6; ++order) {
    OffsetAllocator allocator(768);
    uint64_t blocks[3];
    for (uint64_t& block : blocks) block = *allocator.Allocate(256);
    EXPECT_FALSE(allocator.Allocate(1).ok());
    const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int i : orders[order]) EXPECT_TRUE(allocator.Free(blocks[i]).ok());
    EXPECT_EQ(allocator.free_ranges(), 1u);
    EXPECT_EQ(*allocator.Allocate(768), 0u);
  }
}

TEST(OffsetAllocator, NeverOverlapsUnderRandomUse) {
  std::mt19937_64 random(1);
  OffsetAllocator allocator(1 << 20);
  std::map<uint64_t, uint64_t> live;  // offset -> bytes asked for
  for (int i = 0; i < 20000; ++i) {
    if (live.empty() || random() % 3 != 0) {
      const uint64_t bytes = random() % 9000;
      const uint64_t alignment = uint64_t{1} << (random() % 13);
      auto offset = allocator.Allocate(bytes, alignment);
      if (!offset.ok()) continue;
      ASSERT_EQ(*offset % std::max<uint64_t>(alignment, 256), 0u);
      auto next = live.lower_bound(*offset);
      if (next != live.end()) {
        ASSERT_LE(*offset + std::max<uint64_t>(bytes, 1), next->first);
      }
      if (next != live.begin()) {
        auto previous = std::prev(next);
        ASSERT_LE(previous->first + std::max<uint64_t>(previous->second, 1), *offset);
      }
      ASSERT_LE(*offset + bytes, allocator.capacity());
      live[*offset] = bytes;
    } else {
      auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
      ASSERT_TRUE(allocator.Free(victim->first).ok());
      live.erase(victim);
    }
  }
  for (const auto& [offset, bytes] : live) ASSERT_TRUE(allocator.Free(offset).ok());
  EXPECT_EQ(allocator.used(), 0u);
  EXPECT_EQ(allocator.free_ranges(), 1u);
}

}  // namespace
}  // namespace tandem
