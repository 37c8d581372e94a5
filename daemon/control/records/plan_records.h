// File: plan_records.h
//
// Records of a group's plans. Plain data under the registry's mutex.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/base/barrier.h"
#include "daemon/control/records/memory_records.h"
#include "tandem/op_request.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// The bytes that are allocated for half a workspace of which a plan uses `half_bytes`.
inline uint64_t AllocatedHalf(uint64_t half_bytes) {
  constexpr uint64_t kSmallest = uint64_t{2} << 20;
  return half_bytes == 0 ? 0 : std::max(kSmallest, std::bit_ceil(half_bytes));
}

struct PlanRecord {
  uint64_t id = 0;
  std::string key;
  uint32_t index = 0;
  std::string info;                   // serialised v1::PlanInfo, without the group's own figures
  std::vector<std::string> commands;  // by rank: serialised engine::v1::Command with AddPlan
  uint64_t kept_bytes = 0;            // charged as Resource::kPlanBytes
  uint64_t half_bytes = 0;            // of each half of the workspace, that its programs use
  uint64_t bulk_bytes = 0;
  std::vector<bool> released;                      // by rank
  std::vector<std::optional<OpRequest>> requests;  // by rank; none: an earlier tandemd's that does not parse
  bool acknowledged = false;  // a rank may have the answer: the next tandemd must know it
  // Of a plan that is placed in the client; null: engines run it, and have it.
  struct InClient {
    InClient(size_t world, std::string what) : armed(world, std::move(what), "arm it") {}
    Barrier armed;                          // of the ranks that can launch it
    std::string family;                     // serialised v1::Family; empty: a plan of one shape
    std::vector<std::string> programs;      // by rank: serialised program::v1::RankProgram
    std::shared_ptr<SegmentSet> workspace;  // null: it uses none. Later plans may have a larger one
    uint64_t half_bytes = 0;                // of this workspace
    uint64_t bulk_bytes = 0;
  };
  std::shared_ptr<InClient> client;
};

struct PrepareBarrier : Barrier {
  using Barrier::Barrier;
  std::vector<std::optional<OpRequest>> requests;  // by rank; none: it has not come
  // By rank: whether it can measure, and what it has measured. Its `request` is empty.
  std::vector<v1::PrepareRequest> tuning;
  std::vector<Algorithm> measure;  // the answer to ranks that can all measure
  uint64_t plan_id = 0;
};

}  // namespace tandem::daemon
