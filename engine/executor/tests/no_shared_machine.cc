// For test programs whose groups each make a host machine of their own.
#include "engine/executor/tests/test_machine.h"

namespace tandem::engine {

TestMachine* SharedMachine() { return nullptr; }
int MostRanks() { return plan::kMaxWorldSize; }

}  // namespace tandem::engine
