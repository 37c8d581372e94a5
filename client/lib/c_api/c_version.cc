// Versions of the loaded library.
#include "common/build/build_version.h"
#include "common/protocol.h"
#include "tandem/c_types.h"

extern "C" {

int tandem_abi_version(void) { return TANDEM_ABI_VERSION; }

const char* tandem_version(void) { return tandem::BuildVersion(); }

int tandem_protocol_version(void) { return static_cast<int>(tandem::kProtocol); }

}  // extern "C"
