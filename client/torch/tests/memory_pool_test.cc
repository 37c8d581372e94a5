// The memory pool: pieces of arenas, by device.
#include "client/torch/memory_pool.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::torch_ops {
namespace {

TEST(MemoryPool, GivesPiecesOfItsArenas) {
  std::vector<std::byte> first(4096), second(8192);
  MemoryPool pool;
  EXPECT_EQ(pool.Allocate(0, 1), nullptr);
  pool.AddArena(0, first.data(), first.size());
  EXPECT_EQ(pool.Allocate(1, 1), nullptr) << "another device's";
  EXPECT_EQ(pool.Allocate(0, 100), first.data());
  EXPECT_EQ(pool.Allocate(0, 100), first.data() + MemoryPool::kAlignment);
  EXPECT_EQ(pool.Allocate(0, 4096), nullptr);
  pool.AddArena(0, second.data(), second.size());
  EXPECT_EQ(pool.Allocate(0, 4096), second.data());
}

TEST(MemoryPool, EqualRequestsGetEqualOffsets) {
  std::vector<std::byte> memory[2];
  std::vector<ptrdiff_t> offsets[2];
  for (int rank = 0; rank < 2; ++rank) {
    memory[rank].resize(1 << 16);
    MemoryPool pool;
    pool.AddArena(rank, memory[rank].data(), memory[rank].size());
    std::vector<std::byte*> pieces;
    for (size_t bytes : {3000, 512, 9000, 1, 20000}) pieces.push_back(pool.Allocate(rank, bytes));
    pool.Free(pieces[2]);
    pool.Free(pieces[1]);
    pool.Free(pieces[1] + 1);  // no piece
    for (size_t bytes : {600, 9000}) pieces.push_back(pool.Allocate(rank, bytes));
    for (std::byte* piece : pieces) offsets[rank].push_back(piece - memory[rank].data());
  }
  EXPECT_EQ(offsets[0], offsets[1]);
  EXPECT_EQ(offsets[0][5], offsets[0][1]) << "the freed pieces have become one";
}

TEST(MemoryPool, AFreedPieceIsGivenAgain) {
  std::vector<std::byte> memory(4096);
  MemoryPool pool;
  pool.AddArena(0, memory.data(), memory.size());
  std::byte* piece = pool.Allocate(0, 4096);
  ASSERT_NE(piece, nullptr);
  EXPECT_EQ(pool.Allocate(0, 1), nullptr);
  pool.Free(piece);
  EXPECT_EQ(pool.Allocate(0, 4096), piece);
}

}  // namespace
}  // namespace tandem::torch_ops
