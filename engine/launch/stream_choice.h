// File: stream_choice.h
//
// `StreamChoice`: the choice between lane 0's two streams. Under MPS the GPU seems to serve the channels of a
// process's streams by two front ends in turn. A client sees an end 2 to 3 µs sooner if its stream is served
// by the same front end as the engine's. No call shows which front end serves a stream, so the other stream
// is tried now and then, and the stream with the shorter turns is kept.
//
// A *turn* is the time from an end of a channel's launch, as the engine sees it, to the arrival of that
// channel's next launch. It depends on what has ended by as much as on the stream (a program of several lanes
// ends later than its last word), so only turns behind the same plan are compared.
//
// Pure logic: the caller passes the time, and makes the lane switch when it can. Allocates nothing.
//
// Thread rule: one thread.
#pragma once

#include <array>
#include <cstdint>

namespace tandem::engine {

// The turns that count, and the difference that decides. The defaults are for turns of a GPU's clients.
struct TurnLimits {
  // In longer turns the client did other work: they do not count.
  uint64_t longest_ns = 60'000;
  // The other stream is kept if its median turn is shorter by more than this.
  uint64_t margin_ns = 700;
};

class StreamChoice {
 public:
  StreamChoice() = default;
  explicit StreamChoice(const TurnLimits& limits) : limits_(limits) {}

  // Turns on a stream before it is compared: the lane's first ones, and those of each trial.
  static constexpr uint64_t kFirstTurns = 32, kTrialTurns = 24;
  // Between trials; doubled by each that changes nothing.
  static constexpr uint64_t kShortestIntervalNs = 1'000'000'000, kLongestIntervalNs = 30'000'000'000;
  // A lane that has not switched after so many turns hardly ever stands still: it stays where it is until the
  // next trial.
  static constexpr int kWaitBudgetTurns = 16;
  // Turns behind other plans after which the plan that was looked at counts as gone.
  static constexpr int kMaxStrangers = 4000;

  // A turn of `turn_ns` has ended, at `now_ns` by a clock that never goes back; `plan` is what had run before
  // it, and not 0.
  void Turn(uint64_t plan, uint64_t turn_ns, uint64_t now_ns);
  // The stream that the lane should be on. If it is not current(), the caller switches once the lane holds no
  // work.
  int wanted() const { return wanted_; }
  int current() const { return current_; }
  bool WantsSwitch() const { return wanted_ != current_; }
  // The lane is on wanted() now.
  void Switched();

 private:
  void EndTrial(uint64_t now_ns);
  // Ends the trial without a decision.
  void LeaveTrial(uint64_t now_ns);
  // Stays on the current stream; the next trial comes after the interval.
  void Settle(uint64_t now_ns);
  // The plan has not been launched for long.
  void Forget(uint64_t now_ns);
  void GrowInterval();
  uint64_t Median() const;

  TurnLimits limits_;
  int current_ = 0, wanted_ = 0;
  bool trying_ = false;                        // the current stream is on trial against the other one
  uint64_t kept_median_ns_ = 0;                // of the other one, while trying
  std::array<uint64_t, kTrialTurns> turns_{};  // the latest on the current stream
  uint64_t seen_ = 0;                          // turns on it since the lane came to it
  uint64_t plan_ = 0;                          // behind which they are; 0: the next one's
  int strangers_ = 0;                          // turns behind others since the last of them
  int waited_ = 0;                             // turns since a switch is wanted
  uint64_t interval_ns_ = kShortestIntervalNs;
  uint64_t next_trial_ns_ = 0;
};

}  // namespace tandem::engine
