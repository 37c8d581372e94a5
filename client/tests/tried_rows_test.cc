#include "client/lib/client_launch/tried_rows.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tandem::client {
namespace {

TEST(TriedRows, LieCloseToOneAnother) {
  for (const int64_t unit : {1, 2, 3, 8}) {
    for (const int64_t most : {1, 16, 17, 100, 2048, 8192, 100000}) {
      const std::vector<int64_t> tried = TriedRows(unit, most);
      EXPECT_TRUE(std::is_sorted(tried.begin(), tried.end(), std::less_equal<>()));
      for (const int64_t rows : tried) {
        EXPECT_EQ(rows % unit, 0);
        EXPECT_LT(rows, most);
      }
      for (int64_t rows = 1; rows <= most; ++rows) {
        const auto next = std::lower_bound(tried.begin(), tried.end(), rows);
        const int64_t serves = next == tried.end() ? most : *next;
        const int64_t apart = rows < 256 ? 8 : rows < 1024 ? 16 : rows < 2048 ? 64 : rows / 4;
        EXPECT_LE(serves, std::max<int64_t>(16, rows + apart) + unit) << rows << " of " << most;
      }
    }
  }
  EXPECT_LE(TriedRows(1, 8192).size(), 128u);
}

}  // namespace
}  // namespace tandem::client
