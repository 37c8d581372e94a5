// File: plan_timer.h
//
// Times launches of a plan. All ranks of the group call it alike.
#pragma once

#include <span>

#include "client/device/rank_device.h"
#include "tandem/client.h"

namespace tandem {

// The stream and the events of a measurement. All belong to one device.
struct PlanTimer {
  RankStream& stream;
  RankEvent& start;
  RankEvent& end;
  Milliseconds deadline;  // of each wait

  // Microseconds of a launch, over about `launches` of them one behind the other. Work before them holds the
  // ranks until all are there, and is not timed. Launches of a plan in the client are replayed from a graph:
  // calls take longer than a small kernel. Errors: those of the launches.
  Result<double> Time(Plan& plan, std::span<const Binding> bindings, int launches) const;

 private:
  // Puts `launches` of the plan onto the stream.
  Status Launch(Plan& plan, std::span<const Binding> bindings, int launches) const;
};

}  // namespace tandem
