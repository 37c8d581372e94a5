// File: launched_plan.h
//
// `LaunchedPlan`: what a failed launch was of, in one word that kernels carry and hand back.
#pragma once

#include <cstdint>

#include "tandem/client.h"

namespace tandem::client {

struct LaunchedPlan {
  // `own_id`: the plan's, below 2^32. `own_rows`: LaunchOptions::rows.
  LaunchedPlan(uint64_t own_id, int64_t own_rows = LaunchOptions::kBoundRows) : id(own_id), rows(own_rows) {}
  static LaunchedPlan OfWord(uint64_t word) {
    return {word & kIdMask, static_cast<int64_t>(word >> kIdBits) - 1};
  }
  // Rows of 2^32 - 1 and more are left out.
  uint64_t Word() const {
    const auto counted = static_cast<uint64_t>(rows + 1);
    return id | (counted <= kIdMask ? counted << kIdBits : 0);
  }

  uint64_t id = 0;
  int64_t rows = LaunchOptions::kBoundRows;

 private:
  static constexpr int kIdBits = 32;
  static constexpr uint64_t kIdMask = (uint64_t{1} << kIdBits) - 1;
};

}  // namespace tandem::client
