// File: fused_kept.h
//
// Launches of one set of addresses: their parameters, made once, and where their tables are kept in device memory, so that a launch
// that is like those before it passes a few hundred bytes instead of thousands (FusedKept).
//
// The first launches with a set of addresses pass everything by value: work whose addresses change all the time never pays for a
// copy that it would not use. Tables are copied by a kernel of their own on the launches' stream, which orders the copy behind whoever
// used the place before, and before the launch: nothing is synchronised, nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/native/native_matmul.h"

namespace tandem::cuda {

// Places for tables in device memory. All who take places use them on one stream.
//
// Thread rule: one thread at a time.
class KeptTables {
 public:
  // `memory`: device memory of `bytes`, which outlives all use of the places; aligned as FusedTables.
  KeptTables(void* memory, size_t bytes);
  // Null when there is none left.
  FusedTables* Take();
  void Give(FusedTables* place) { free_.push_back(place); }

 private:
  std::vector<FusedTables*> free_;
};

// What puts work on a stream; tests have their own.
struct FusedCalls {
  decltype(&LaunchFused) launch = &LaunchFused;
  decltype(&LaunchFusedKept) launch_kept = &LaunchFusedKept;
  decltype(&KeepFusedTables) keep = &KeepFusedTables;
};

// What changes with every launch.
struct FusedTurn {
  uint64_t epoch = 0;
  const uint64_t* abort_word = nullptr;
  const uint64_t* guard_word = nullptr;
  uint64_t guard_value = 0;
};

class PreparedFused : public PreparedWork {
 public:
  // Launches with these addresses that pass everything by value.
  static constexpr int kByValue = 2;

  PreparedFused(const FusedMatmulParams& params, const FusedVariant* variant, int ctas)
      : params_(params), variant_(variant), ctas_(ctas) {}
  ~PreparedFused() override;
  PreparedFused(const PreparedFused&) = delete;
  PreparedFused& operator=(const PreparedFused&) = delete;

  // Enqueues one launch. `kept`: the stream's places; null: everything goes by value. So it does for kernels that run longer than a
  // few tens of microseconds: what reading the tables from memory costs them is more than it saves.
  Status Enqueue(const FusedTurn& turn, const std::shared_ptr<KeptTables>& kept, CUstream_st* stream,
                 const FusedCalls& calls = {});

 private:
  FusedMatmulParams params_;
  const FusedVariant* variant_;
  int ctas_;
  int launches_ = 0;
  std::shared_ptr<KeptTables> places_;  // that `place_` is of
  FusedTables* place_ = nullptr;
};

}  // namespace tandem::cuda
