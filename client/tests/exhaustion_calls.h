// File: exhaustion_calls.h
//
// Programs that use the library against a fake daemon, for tests in which resources run out in their calls.
#pragma once

#include <memory>
#include <string>

#include "client/tests/allowance.h"
#include "client/tests/fake_control.h"
#include "tandem/client.h"

namespace tandem::client {

// `call`, during which resources may run out.
template <typename Call>
auto InLibrary(Call call) noexcept {
  const InCall in(true);
  return call();
}
#define CALL(expression) InLibrary([&] { return expression; })

// A handle's end.
template <typename Handle>
void Drop(Handle* handle) noexcept {
  const InCall in(true);
  handle->reset();
}

// Names and keys are too long to lie in a string itself.
inline const std::string kLongKey = "a key that is too long to lie in a string itself";
std::shared_ptr<FakeDaemon> MakeFakeDaemon();
// One that places the plans of a group of one rank in the client.
Result<std::shared_ptr<FakeDaemon>> MakePlacingDaemon();
JoinOptions SomeJoin(int world_size);
OpRequest SomeSum();

// Each uses one part of the interface, and returns the first failure; OK if there is none.
// Tensors, memory, streams, graphs and plans of engines.
Status UseSession();
// Plans on the caller's stream, renewals, suspensions, previews and collectives.
Status UseClientPlans();
// The same parts by tandem.h.
Status UseCInterface();
// A join and a prepare on threads of the library. Makes no tested call.
Status UseInBackground();

}  // namespace tandem::client
