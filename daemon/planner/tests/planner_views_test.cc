#include <gtest/gtest.h>

#include "program/text.h"
#include "program/views.h"

namespace tandem::plan {
namespace {

using Shape = std::vector<int64_t>;

View Matrix() { return Packed(Ref{}, DType::kF32, {4, 6}); }

TEST(Views, SliceMovesTheStart) {
  const View slice = Slice(Matrix(), 0, 2, 1);
  EXPECT_EQ(slice.ref.offset, 2u * 6 * 4);
  EXPECT_EQ(slice.extent, (Shape{1, 6}));
  EXPECT_EQ(Slice(Matrix(), 1, 5, 1).ref.offset, 5u * 4);
  // An empty slice at the end stays within the buffer.
  EXPECT_EQ(Slice(Matrix(), 0, 4, 0).ref.offset, 0u);
}

TEST(Views, SplitAndMoveKeepElements) {
  const View split = SplitDim(Matrix(), 1, 3);
  EXPECT_EQ(split.extent, (Shape{4, 3, 2}));
  EXPECT_EQ(split.stride, (Shape{6, 2, 1}));
  const View moved = MoveDim(split, 1, 0);
  EXPECT_EQ(moved.extent, (Shape{3, 4, 2}));
  EXPECT_EQ(moved.stride, (Shape{2, 6, 1}));
  EXPECT_EQ(MoveDim(moved, 0, 1), split);
}

TEST(Views, KnowWhetherTheyAreContiguous) {
  EXPECT_TRUE(IsContiguous(Matrix()));
  EXPECT_TRUE(IsContiguous(Slice(Matrix(), 0, 1, 2)));
  EXPECT_FALSE(IsContiguous(Slice(Matrix(), 1, 1, 2)));
  EXPECT_TRUE(IsContiguous(Slice(Matrix(), 1, 1, 0)));
  View row = Slice(Matrix(), 0, 1, 1);
  row.stride[0] = 1000;  // never stepped over
  EXPECT_TRUE(IsContiguous(row));
  EXPECT_FALSE(IsContiguous(MoveDim(Matrix(), 0, 1)));
  View empty = MoveDim(Matrix(), 0, 1);
  empty.extent[0] = 0;
  EXPECT_TRUE(IsContiguous(empty));
}

TEST(Views, DimensionsJoinWhereAllViewsAllowIt) {
  const View matrix = Matrix(), split = SplitDim(Matrix(), 0, 2);
  const auto joined = [](std::vector<const View*> views) { return JoinedDims(views); };
  EXPECT_EQ(joined({&matrix}), 1);
  EXPECT_EQ(joined({&split, &split}), 1);
  View gap = matrix;
  gap.stride[0] = 8;
  EXPECT_EQ(joined({&gap}), 2);
  EXPECT_EQ(joined({&matrix, &gap}), 2);
  View one = Packed(Ref{}, DType::kF32, {4, 1, 6});
  one.stride[1] = 1000;  // never stepped over
  EXPECT_EQ(joined({&one}), 1);
  const View moved = MoveDim(split, 2, 0);
  EXPECT_EQ(joined({&moved}), 2);
}

TEST(Order, IsKeptWhenAViewIsPacked) {
  const View rows = Packed(Ref{}, DType::kF32, {3, 4});
  EXPECT_EQ(PackedInOrder(rows, Ref{}).stride, (std::vector<int64_t>{4, 1}));
  View columns = rows;
  columns.stride = {1, 30};  // with gaps
  EXPECT_EQ(PackedInOrder(columns, Ref{}).stride, (std::vector<int64_t>{1, 3}));
  View three = Packed(Ref{}, DType::kF32, {2, 3, 4});
  three.stride = {1, 100, 10};
  EXPECT_EQ(PackedInOrder(three, Ref{}).stride, (std::vector<int64_t>{1, 8, 2}));
  // An extent of one has any stride.
  View one = Packed(Ref{}, DType::kF32, {3, 1});
  one.stride = {1, 0};
  EXPECT_TRUE(LieAlike(one, PackedInOrder(one, Ref{})));
  EXPECT_FALSE(LieAlike(columns, PackedInOrder(columns, Ref{})));
  EXPECT_TRUE(LieAlike(rows, PackedInOrder(rows, Ref{})));
  View empty = columns;
  empty.extent[0] = 0;
  EXPECT_TRUE(LieAlike(empty, rows));
}

TEST(Parts, CoverEverythingOnce) {
  for (int64_t total : {0, 1, 7, 8, 9, 1000}) {
    for (int parts : {1, 2, 3, 8}) {
      for (int64_t granule : {0, 1, 4, 16}) {
        int64_t next = 0;
        for (int i = 0; i < parts; ++i) {
          const Range range =
              granule == 0 ? BalancedPart(total, parts, i) : AlignedPart(total, parts, i, granule);
          if (range.length > 0) {
            EXPECT_EQ(range.begin, next);
            EXPECT_TRUE(granule == 0 || range.begin % granule == 0);
          }
          EXPECT_GE(range.length, 0);
          next += range.length;
        }
        EXPECT_EQ(next, total);
      }
    }
  }
}

TEST(Text, ReadsWell) {
  EXPECT_EQ(BytesText(512), "512 B");
  EXPECT_EQ(BytesText(256 << 10), "256 KiB");
  EXPECT_EQ(BytesText((256 << 10) + 4), "262148 B");
  EXPECT_EQ(BytesText(5 << 19), "2.5 MiB");
  EXPECT_EQ(ShapeText({2, 3}), "[2, 3]");
  EXPECT_EQ(Text("chunk ", 3, " to ", int64_t{-1}), "chunk 3 to -1");
}

}  // namespace
}  // namespace tandem::plan
