// File: family.h
//
// Client-placed plans and families as the daemon sends them, for the core.
#pragma once

#include <vector>

#include "client/lib/base/control_api.h"
#include "common/unique_fd.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::client {

// A client-placed plan's program, and the descriptors that came with it, without a family. INTERNAL: they do not fit
// together.
Result<ClientPlacementInfo> ReadPlacement(const v1::ClientPlacement& reply, std::vector<UniqueFd> fds);

// Sets `placement`'s family, if the plan is one. INTERNAL: the reply does not fit together.
Status AddFamily(const v1::PrepareReply& reply, ClientPlacementInfo* placement);

}  // namespace tandem::client
