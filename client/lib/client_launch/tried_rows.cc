#include "client/lib/client_launch/tried_rows.h"

namespace tandem::client {
namespace {

constexpr int64_t kLeast = 16;  // products of fewer rows have the tiles of so many

// To the next number of tried rows, from a power of two on. Tiles differ by 8 rows.
int64_t StepFrom(int64_t doubling) {
  if (doubling < 256) return 8;
  if (doubling < 1024) return 16;
  return doubling < 2048 ? 64 : doubling / 4;
}

}  // namespace

std::vector<int64_t> TriedRows(int64_t unit, int64_t max_rows) {
  std::vector<int64_t> tried;
  for (int64_t doubling = kLeast; doubling < max_rows; doubling *= 2) {
    const int64_t step = StepFrom(doubling);
    for (int64_t least = doubling; least < 2 * doubling; least += step) {
      const int64_t rows = (least + unit - 1) / unit * unit;
      if (rows < max_rows && (tried.empty() || rows > tried.back())) tried.push_back(rows);
    }
  }
  return tried;
}

}  // namespace tandem::client
