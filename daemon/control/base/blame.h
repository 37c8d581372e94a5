// File: blame.h
//
// The cause of a failure as fields of a status: which ranks, which GPU, which process. `who` is the same as
// text.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tandem/engine/v1/engine.pb.h"
#include "tandem/status.h"

namespace tandem::daemon {

// "rank 3", "ranks 1, 3".
std::string RankList(const std::vector<uint32_t>& ranks);

// Ranks that caused a failure, at least one; `pid` is of the process of a single one.
StatusDetail BlameRanks(std::string reason, std::vector<uint32_t> ranks, std::string field = {},
                        int64_t pid = 0);
StatusDetail BlameRank(std::string reason, int rank, std::string field = {}, int64_t pid = 0);
// The engine of a GPU, by its position in the node's topology.
StatusDetail BlameGpu(std::string reason, int gpu, std::string field = {});

// The command that ends a group on an engine with `why`, which is not OK: code, message and cause.
engine::v1::Command BreakCommand(uint64_t group_id, const Status& why);

// A time as people read it: "2 s", "0.03 s".
std::string Seconds(std::chrono::milliseconds time);

}  // namespace tandem::daemon
