// File: request_json.h
//
// A request as JSON: {"op": "all_reduce", "operands": [{"role": "input", "dtype": "f32", "shape": [256]}, …],
// …}. An absent field has the default of OpRequest; an operand's dtype is f32.
#pragma once

#include <nlohmann/json.hpp>

#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem {

// INVALID_ARGUMENT for names that are not known. Throws nlohmann's type_error for values of other types: the
// writer is a program of our own.
Result<OpRequest> RequestFromJson(const nlohmann::json& object);
// All fields; RequestFromJson gives the request back.
nlohmann::json RequestToJson(const OpRequest& request);

}  // namespace tandem
