#include "tandem/interface_guard.h"

namespace tandem {

const char TANDEM_INTERFACE = 0;

}  // namespace tandem
