// File: json.h
//
// The daemon's replies as JSON for programs.
#pragma once

#include <string>

#include "tandem/status.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace tandem::ctl {

// The message's fields by their names in the .proto file, all of them. 64-bit integers are JSON numbers where
// a double holds them exactly (up to 2^53 in magnitude), else strings. Operations, algorithms, roles and
// types have their names, not their numbers. INTERNAL if Protobuf cannot print the message.
Result<std::string> MessageJson(const google::protobuf::Message& message);

}  // namespace tandem::ctl
