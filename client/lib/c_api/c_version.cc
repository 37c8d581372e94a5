// Versions of the loaded library.
#include "common/build/build_version.h"
#include "common/protocol.h"
#include "tandem/c_types.h"
#include "tandem/version.h"

namespace tandem {

const char* LibraryVersion() noexcept { return BuildVersion(); }
int LibraryProtocolVersion() noexcept { return static_cast<int>(kProtocol); }

}  // namespace tandem

extern "C" {

int tandem_abi_version(void) { return TANDEM_ABI_VERSION; }

const char* tandem_version(void) { return tandem::LibraryVersion(); }

int tandem_protocol_version(void) { return tandem::LibraryProtocolVersion(); }

}  // extern "C"
