// File: status_proto.h
//
// Tandem's status as the clients' protocol has it, for trailers, lease messages and events. Pure.
#pragma once

#include "tandem/status.h"

namespace tandem::v1 {
class StatusDetail;
}

namespace tandem::daemon {

// Writes code, message and detail. Texts are cut at 2048 bytes (message) and 256 bytes (others): HTTP/2
// headers are bounded, 8 KiB by default for message and trailer together, and a longer trailer would be lost
// as a whole.
void FillStatusDetail(const Status& status, v1::StatusDetail* detail);

// A status that a client sends, with its code, message, reason and field; texts are cut as above. A code that
// does not exist is UNKNOWN.
Status StatusOf(const v1::StatusDetail& detail);

}  // namespace tandem::daemon
