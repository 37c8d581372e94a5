// File: family.h
//
// A family as the daemon sends it, for the core.
#pragma once

#include "client/lib/base/control_api.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::client {

// Sets `placement`'s family, if the plan is one. INTERNAL: the reply does not fit together.
Status AddFamily(const v1::PrepareReply& reply, ClientPlacementInfo* placement);

}  // namespace tandem::client
