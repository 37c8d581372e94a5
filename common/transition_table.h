// File: transition_table.h
//
// A table of a state machine's transitions, and the state that follows by it.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

namespace tandem {

template <typename State, typename Event>
struct Transition {
  State from;
  Event event;
  State to;
};

// The state that `table` names for the pair; nothing if it has no such transition.
template <typename State, typename Event, size_t N>
constexpr std::optional<State> NextState(const std::array<Transition<State, Event>, N>& table, State from,
                                         Event event) {
  for (const Transition<State, Event>& transition : table) {
    if (transition.from == from && transition.event == event) return transition.to;
  }
  return std::nullopt;
}

}  // namespace tandem
