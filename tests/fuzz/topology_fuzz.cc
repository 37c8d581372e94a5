// Fuzzes topology files: any text is either refused or gives a topology that classifies, and that writes and
// reads back.
#include <numeric>
#include <string_view>
#include <vector>

#include "daemon/topology/topology.h"
#include "daemon/topology/topology_file.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  Result<Topology> topology = ParseTopology(text, "fuzz");
  if (!topology.ok()) return 0;
  fuzz::Expect(topology->size() <= kMaxGpus, "more GPUs than a node has");
  const TopologyClass topology_class = Classify(*topology);
  fuzz::Expect(FindHybridCubeMesh(*topology).ok() == (topology_class == TopologyClass::kHybridCubeMesh),
               "FindHybridCubeMesh and Classify disagree");
  std::vector<int> members(static_cast<size_t>(topology->size()));
  std::iota(members.rbegin(), members.rend(), 0);
  fuzz::Expect(Classify(Subset(*topology, members)) == topology_class,
               "the class depends on the GPUs' order");
  const std::string written = WriteTopology(*topology);
  Result<Topology> again = ParseTopology(written, "written");
  fuzz::Expect(again.ok(), "what was written does not parse: " + again.status().ToString() + "\n" + written);
  fuzz::Expect(WriteTopology(*again) == written, "what was written reads back otherwise:\n" + written);
  fuzz::Expect(Classify(*again) == topology_class, "the class is lost in writing");
  return 0;
}
