// File: topology_file.h
//
// Reads and writes topologies as TOML: for tests, for teaching, and to force paths on real hardware. The
// format is in docs/topology.md. Unknown keys, wrong types and matrices that contradict themselves are errors
// with file and line.
//
// Example:
//   gpu_defaults = {model = "A100", switch_links = 0}
//   gpus = [{numa_node = 0}, {numa_node = 1}]
//   nvlinks = [{gpus = [0, 1], links = 12}]
#pragma once

#include <string>
#include <string_view>

#include "daemon/topology/topology.h"
#include "tandem/status.h"

namespace tandem {

// The topology that `text` describes; `file` becomes its source and opens every error: "file:line: …".
// INVALID_ARGUMENT on anything that the format does not allow, OUT_OF_RANGE on numbers beyond their limits.
Result<Topology> ParseTopology(std::string_view text, std::string_view file);

// The same from the file at `path`; NOT_FOUND and the like if it cannot be read.
Result<Topology> LoadTopology(const std::string& path);

// `topology` as such a text: ParseTopology of it gives the same but for the source. A pair whose peer access
// fails in one direction only is written, and read back, as failing in both.
std::string WriteTopology(const Topology& topology);

}  // namespace tandem
