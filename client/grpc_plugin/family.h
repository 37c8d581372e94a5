// File: family.h
//
// A family as the daemon sends it, for the core.
#pragma once

#include <memory>

#include "client/lib/base/control_api.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::client {

// `rows`: of the plan's explanation. INTERNAL: the message does not fit together.
Result<std::shared_ptr<const FamilyInfo>> FromProto(const v1::Family& family, const v1::RowTable& rows,
                                                    int world_size);

}  // namespace tandem::client
