// File: skinny.h
//
// The fused algorithm's programs for few rows, on one lane and without an entry exchange. SkinnyFor
// (forms/skinny_form.h) decides whether it takes this form.
#pragma once

#include "daemon/planner/problem/problem.h"
#include "program/skinny_layout.h"

namespace tandem::plan {

// Writes the programs; the plan's numbers but `steps` are the caller's.
Status BuildSkinny(const Problem& problem, const SkinnyLayout& layout, OperationPlan* plan);

}  // namespace tandem::plan
