// File: topology_json.h
//
// `tandemctl topo --json`.
#pragma once

#include <string>

#include "tandem/admin/v1/admin.pb.h"
#include "tandem/status.h"

namespace tandem::ctl {

// The GPUs and the matrices of their links, as an object of these fields.
//   "topology_class", "source": as tandemd names them
//   "gpus": an array of {"index", "uuid", …}
//   "links": NVLinks between two GPUs, those through switches too
//   "pcie": the names of distances, "X" for a GPU and itself
//   "peer_access"
// Fails if tandemd's answer is no topology.
Result<std::string> TopologyJson(const admin::v1::GetTopologyReply& reply);

}  // namespace tandem::ctl
