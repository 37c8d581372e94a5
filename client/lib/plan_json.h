// File: plan_json.h
//
// A plan's explanation as JSON, for programs in other languages.
#pragma once

#include <string>

#include "tandem/client.h"

namespace tandem::client {

// One object with the fields of PlanInfo by their names; enumerations as the names that tandem/op_request.h
// gives them.
std::string PlanJson(const PlanInfo& info);

}  // namespace tandem::client
