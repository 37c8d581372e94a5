// File: skinny.h
//
// The fused algorithm's form for few rows: one kernel a rank moves shards or sums and multiplies, on one
// lane and without an entry exchange. It is taken where the kernel computes all tiles at once
// (program/skinny_layout.h).
#pragma once

#include <optional>
#include <string>

#include "daemon/planner/planner.h"
#include "daemon/planner/problem/problem.h"
#include "program/skinny_layout.h"

namespace tandem::plan {

// The layout of the request's kernel, if fused takes this form of it. Else nothing, and why in *why unless
// that is null. `problem`'s operation is one that fused can run (WhyNotFused).
std::optional<SkinnyLayout> SkinnyFor(const Problem& problem, std::string* why = nullptr);

// Writes the programs; the plan's numbers but `steps` are the caller's.
Status BuildSkinny(const Problem& problem, const SkinnyLayout& layout, OperationPlan* plan);

}  // namespace tandem::plan
