// File: nccl_options.h
//
// A group's options ("nccl.…", JoinOptions::options) for its NCCL communicator. The stand-in checks
// them too: a wrong one is refused on every backend.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "tandem/status.h"

namespace tandem {

struct NcclOptions {
  std::optional<int> min_ctas, max_ctas, cga_cluster_size;  // without a value: NCCL's default
  bool blocking = true;  // collectives go to a child communicator that blocks
};

// INVALID_ARGUMENT, with the option's name, for one that begins with "nccl." and is unknown, and for a value
// that it cannot have. Other options are passed over.
Result<NcclOptions> ParseNcclOptions(const std::map<std::string, std::string>& options);

}  // namespace tandem
