// File: top.h
//
// `tandemctl top`: rates of engines and plans between two readings of the counters. Pure functions.
#pragma once

#include <chrono>
#include <string>

#include "tandem/admin/v1/admin.pb.h"

namespace tandem::ctl {

struct TopSample {
  admin::v1::GetStatsReply stats;
  admin::v1::ListPlansReply plans;
  std::chrono::steady_clock::time_point at;
};

// One screen: rates from `before` to `now`. A plan that is in `now` only has counted from 0. A tandemd that
// was restarted in between has lower counters: then rates count from 0 too.
std::string TopText(const TopSample& before, const TopSample& now);
// The same for programs: {"seconds", "engines": [{"gpu_uuid", "state", "busy", "launches_per_second", …}],
// "plans": […]}. "busy" is the part of the time in which the engine ran something, 0 to 1.
std::string TopJson(const TopSample& before, const TopSample& now);

}  // namespace tandem::ctl
