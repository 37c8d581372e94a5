// How shards are cut into chunks for the warps that send them.
#include "kernels/cuda/fused/client_pushes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tandem::cuda {
namespace {

using testing::HasSubstr;

DeviceView At(uintptr_t address, DType dtype, std::vector<int64_t> extent, std::vector<int64_t> stride) {
  DeviceView view;
  view.data = reinterpret_cast<std::byte*>(address);
  view.dtype = dtype;
  view.extent = std::move(extent);
  view.stride = std::move(stride);
  return view;
}

Word* WordAt(uintptr_t address) { return reinterpret_cast<Word*>(address); }
uint32_t* const kCounters = reinterpret_cast<uint32_t*>(0x900000);

FusedPush Push(DeviceView from, DeviceView to, Word* done) {
  FusedPush push;
  push.from = std::move(from);
  push.to = std::move(to);
  push.done = done;
  return push;
}

Result<ClientPushes> Make(std::vector<FusedPush> pushes) { return MakePushes(pushes, kCounters); }

TEST(ClientPushes, ContiguousShardsAreOneRow) {
  // 128 rows of 512 bytes: 65536 bytes, in chunks of 512 words of 16 bytes.
  const auto shard = [](uintptr_t at) { return At(at, DType::kBf16, {128, 256}, {256, 1}); };
  const auto made = Make(
      {Push(shard(0x10000), shard(0x200000), WordAt(8)), Push(shard(0x10000), shard(0x300000), WordAt(16))});
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  ASSERT_EQ(made->count, 2);
  EXPECT_EQ(made->chunks, 16u);
  EXPECT_EQ(made->drawn, kCounters);
  for (int p = 0; p < 2; ++p) {
    const PushedRows& push = made->push[p];
    EXPECT_EQ(push.rows, 1);
    EXPECT_EQ(push.row_bytes, 65536);
    EXPECT_EQ(push.width, 16);
    EXPECT_EQ(push.first_chunk, 8u * static_cast<uint32_t>(p));
    EXPECT_EQ(push.chunks, 8u);
    EXPECT_EQ(push.chunk_words, kPushChunk);
    EXPECT_EQ(push.whole, 8u);
    EXPECT_EQ(push.awaited, 8u);
    EXPECT_EQ(push.arrived, kCounters + 1 + p);
    EXPECT_EQ(push.done, reinterpret_cast<uint64_t*>(8 + 8 * p));
  }
}

TEST(ClientPushes, RowsKeepTheirPitches) {
  const auto made = Make({Push(At(0x10000, DType::kBf16, {100, 256}, {320, 1}),
                               At(0x200000, DType::kBf16, {100, 256}, {256, 1}), WordAt(8))});
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const PushedRows& push = made->push[0];
  EXPECT_EQ(push.rows, 100);
  EXPECT_EQ(push.row_bytes, 512);
  EXPECT_EQ(push.from_pitch, 640);
  EXPECT_EQ(push.to_pitch, 512);
  EXPECT_EQ(push.chunks, 7u);  // 3200 words
  EXPECT_EQ(push.whole, 0u) << "a row is shorter than what a warp has on the way";
}

// Chunks are cut so that none reaches into the next row, where rows have room for whole ones.
TEST(ClientPushes, ChunksStayWithinLongRows) {
  for (const auto& [columns, words] :
       std::vector<std::pair<int64_t, uint32_t>>{{8192, 512}, {5120, 128}, {3072, 384}}) {
    const auto made = Make({Push(At(0x10000, DType::kBf16, {16, columns}, {2 * columns, 1}),
                                 At(0x8000000, DType::kBf16, {16, columns}, {columns, 1}), WordAt(8))});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    const PushedRows& push = made->push[0];
    EXPECT_EQ(push.chunk_words, words) << columns;
    EXPECT_EQ(push.chunks * words * 16, 16 * 2 * columns) << columns;
    EXPECT_EQ(push.whole, push.chunks) << columns;
  }
}

// The whole chunks of a push are all its bytes, each at its place, with any pitches.
TEST(ClientPushes, WholeChunksLieWhereTheirRowsDo) {
  struct Shape {
    int64_t rows, columns, from_pitch, to_pitch;
  };
  for (const Shape& shape :
       {Shape{64, 4096, 4096, 4096}, Shape{7, 8192, 16384, 8192}, Shape{5, 5120, 5120, 6400},
        Shape{9, 3072, 3080, 4096}, Shape{1, 1 << 20, 1 << 20, 1 << 20}}) {
    const auto made = Make(
        {Push(At(0x10000, DType::kBf16, {shape.rows, shape.columns}, {shape.from_pitch, 1}),
              At(0x80000000, DType::kBf16, {shape.rows, shape.columns}, {shape.to_pitch, 1}), WordAt(8))});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    const PushedRows& push = made->push[0];
    ASSERT_EQ(push.whole, push.chunks) << shape.columns;
    ASSERT_EQ(push.chunk_words % kPushStep, 0u);
    const int64_t chunk_bytes = int64_t{push.chunk_words} * 16;
    for (uint32_t chunk = 0; chunk < push.whole; ++chunk) {
      const int64_t byte = chunk * chunk_bytes, row = byte / (2 * shape.columns),
                    column = byte % (2 * shape.columns);
      const PushedChunk place = WholeChunk(push, chunk);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(place.from),
                static_cast<uintptr_t>(0x10000 + row * 2 * shape.from_pitch + column));
      ASSERT_EQ(reinterpret_cast<uintptr_t>(place.to),
                static_cast<uintptr_t>(0x80000000 + row * 2 * shape.to_pitch + column));
      ASSERT_LE(column + chunk_bytes, 2 * shape.columns) << "within its row";
    }
    EXPECT_EQ(push.whole * chunk_bytes, shape.rows * shape.columns * 2);
  }
}

TEST(ClientPushes, ThePartOfAChunkComesLast) {
  const auto row = [](uintptr_t at) { return At(at, DType::kBf16, {10000}, {1}); };
  const auto made = Make({Push(row(0x10000), row(0x200000), WordAt(8))});
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(made->push[0].chunks, 3u);  // 1250 words
  EXPECT_EQ(made->push[0].whole, 2u);
}

// Scales by blocks may lie column by column.
TEST(ClientPushes, ColumnsThatLieAlikeAreMovedAlike) {
  const auto packed = [](uintptr_t at) { return At(at, DType::kF32, {100, 3}, {1, 100}); };
  auto made = Make({Push(packed(0x10000), packed(0x200000), WordAt(8))});
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(made->push[0].rows, 1);
  EXPECT_EQ(made->push[0].row_bytes, 1200);
  made = Make({Push(packed(0x10000), At(0x200000, DType::kF32, {100, 3}, {1, 200}), WordAt(8))});
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(made->push[0].rows, 3);
  EXPECT_EQ(made->push[0].row_bytes, 400);
  EXPECT_EQ(made->push[0].from_pitch, 400);
  EXPECT_EQ(made->push[0].to_pitch, 800);
}

// The scales' word announces the shard as well.
TEST(ClientPushes, AWordTellsOfAllThatGoesBeforeIt) {
  const auto shard = [](uintptr_t at) { return At(at, DType::kF8E4M3, {64, 1024}, {1024, 1}); };
  const auto scales = [](uintptr_t at) { return At(at, DType::kF32, {64}, {1}); };
  const auto made = Make(
      {Push(shard(0x10000), shard(0x200000), nullptr), Push(scales(0x30000), scales(0x400000), WordAt(8)),
       Push(shard(0x10000), shard(0x500000), nullptr), Push(scales(0x30000), scales(0x600000), WordAt(16))});
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const uint32_t each = made->push[0].chunks + made->push[1].chunks;
  EXPECT_EQ(made->chunks, 2 * each);
  for (int p = 0; p < 4; ++p) {
    EXPECT_EQ(made->push[p].awaited, each) << p;
    EXPECT_EQ(made->push[p].done, reinterpret_cast<uint64_t*>(p < 2 ? 8 : 16)) << p;
    EXPECT_EQ(made->push[p].arrived, kCounters + (p < 2 ? 1 : 3)) << p;
  }
}

TEST(ClientPushes, WordsAreAsWideAsAddressesAllow) {
  const auto row = [](uintptr_t at) { return At(at, DType::kBf16, {4096}, {1}); };
  for (const auto& [shift, width] :
       std::vector<std::pair<uintptr_t, int>>{{0, 16}, {16, 16}, {8, 4}, {2, 1}}) {
    const auto made = Make({Push(row(0x10000 + shift), row(0x200000), WordAt(8))});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    EXPECT_EQ(made->push[0].width, width) << shift;
    EXPECT_EQ(made->push[0].chunks, 8192u / (512u * static_cast<unsigned>(width))) << shift;
  }
}

TEST(ClientPushes, WhatCannotBeSentIsRefused) {
  const auto refused = [](FusedPush push) { return Make({std::move(push)}).status().message(); };
  const DeviceView rows = At(0x10000, DType::kBf16, {64, 64}, {64, 1});
  EXPECT_THAT(refused(Push(rows, At(0x200000, DType::kBf16, {64, 64}, {1, 64}), WordAt(8))),
              HasSubstr("no common pitch"));
  EXPECT_THAT(refused(Push(rows, rows, nullptr)), HasSubstr("no word"));
  const DeviceView none = At(0x10000, DType::kBf16, {0, 64}, {64, 1});
  EXPECT_THAT(refused(Push(none, none, WordAt(8))), HasSubstr("empty"));
  const FusedPush one = Push(rows, At(0x200000, DType::kBf16, {64, 64}, {64, 1}), WordAt(8));
  EXPECT_THAT(Make(std::vector<FusedPush>(kMaxPushes + 1, one)).status().message(), HasSubstr("too many"));
}

}  // namespace
}  // namespace tandem::cuda
