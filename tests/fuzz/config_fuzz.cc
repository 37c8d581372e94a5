// Fuzzes the configuration parser: any text is either refused or gives a configuration that prints and parses
// back.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "daemon/config/config.h"
#include "daemon/config/config_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::Config config;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  if (!tandem::ParseConfigText(text, "fuzz", config).ok()) return 0;
  if (!tandem::ValidateConfig(config).ok()) return 0;
  std::string printed = tandem::PrintConfig(config);
  tandem::Config parsed;
  if (!tandem::ParseConfigText(printed, "printed", parsed).ok() || tandem::PrintConfig(parsed) != printed)
    std::abort();
  return 0;
}
