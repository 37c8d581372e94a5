// For test programs whose groups each make a host machine of their own.
#include "runtime/executor/tests/test_machine.h"

namespace tandem::runtime {

TestMachine* SharedMachine() { return nullptr; }
int MostRanks() { return plan::kMaxWorldSize; }

}  // namespace tandem::runtime
