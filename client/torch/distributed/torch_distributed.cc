#include "client/torch/distributed/torch_distributed.h"

#include <cstring>

#include "client/torch/distributed/attempt.h"
#include "client/torch/distributed/kernels.h"
#include "client/torch/distributed/served.h"

using namespace tandem::torch_distributed;  // NOLINT: this file is all glue

namespace {

std::vector<std::unique_ptr<torch::Library>>& TheLibraries() {
  static auto* const libraries = new std::vector<std::unique_ptr<torch::Library>>;
  return *libraries;
}

}  // namespace

extern "C" {

int tandem_c10d_version(void) { return TANDEM_C10D_VERSION; }

int tandem_c10d_install(tandem_c10d_takes_fn takes) {
  try {
    TakeGroups(takes);
    if (TheLibraries().empty()) TheLibraries() = RegisterKernels();
    return 1;
  } catch (...) {
    return 0;
  }
}

void tandem_c10d_uninstall(void) {
  try {
    TheLibraries().clear();
    ForgetDeclined();
  } catch (...) {  // NOLINT(bugprone-empty-catch): memory is out, so nothing was installed
  }
}

int tandem_c10d_decline(int how, const char* reason) {
  Attempt* attempt = ThisAttempt();
  if (attempt == nullptr || how < TANDEM_C10D_ONCE || how > TANDEM_C10D_GROUP) return 0;
  if (attempt->decline != Decline::kNone) return 1;
  attempt->decline = static_cast<Decline>(how);
  try {
    attempt->reason = reason;
  } catch (...) {
    attempt->reason.clear();
  }
  return 1;
}

void tandem_c10d_coalescing(int on) { ThisThreadCoalesces() = on != 0; }

int tandem_c10d_inside(void) { return ThisAttempt() == nullptr ? 0 : 1; }

size_t tandem_c10d_tallies(char* text, size_t size) {
  try {
    const std::string lines = TheTallies().Lines();
    std::memcpy(text, lines.data(), std::min(size, lines.size()));
    return lines.size();
  } catch (...) {
    return 0;
  }
}

}  // extern "C"
