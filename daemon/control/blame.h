// File: blame.h
//
// The cause of a failure as fields of a status: which ranks, which GPU, which process. `who` is the same as
// text.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

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

// A time as people read it: "2 s", "0.03 s".
std::string Seconds(std::chrono::milliseconds time);

}  // namespace tandem::daemon
