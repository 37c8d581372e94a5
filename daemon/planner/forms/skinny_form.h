// File: skinny_form.h
//
// Whether the fused algorithm takes its form for few rows: one kernel a rank moves shards or sums and
// multiplies. It is taken where the kernel computes all tiles at once (program/skinny_layout.h).
#pragma once

#include <optional>
#include <string>

#include "daemon/planner/problem/problem.h"
#include "program/skinny_layout.h"

namespace tandem::plan {

// The layout of the request's kernel, if fused takes this form of it. Else nothing, and why in *why unless
// that is null. `problem`'s operation is one that fused can run (WhyNotFused).
std::optional<SkinnyLayout> SkinnyFor(const Problem& problem, std::string* why = nullptr);

}  // namespace tandem::plan
