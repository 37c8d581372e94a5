// tandem-engine: the executor of one GPU. Started by tandemd with its end of a socketpair; everything else it
// learns by commands. It has no network face, and ends when tandemd does, or some time after it without
// another tandemd (docs/restart.md).
//
//   tandem-engine --fd N
//   tandem-engine --version
#include <signal.h>
#include <sys/prctl.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>

#include "common/build/build_version.h"
#include "common/unique_fd.h"
#include "engine/backends/backends.h"
#include "engine/engine.h"
#include "kernels/host/host_backend.h"

namespace {

using tandem::Backend;
using tandem::Result;

Result<std::unique_ptr<Backend>> MakeBackend(const tandem::engine::BackendRequest& request) {
  if (request.name == "cuda") return tandem::engine::MakeCudaEngineBackend(request);
  if (request.name != "host") return tandem::Unimplemented("there is no backend '" + request.name + "'");
  tandem::HostBackendOptions options;
  options.gpu = request.gpu;
  options.hardware_queues = request.hardware_queues;
  options.memory_bytes = request.memory_bytes;
  options.visibility_delay_us = request.visibility_delay_us;
  options.seed = request.seed;
  options.emulated_fused = request.emulated_fused;
  return tandem::MakeHostBackend(options);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("tandem-engine %s\n", tandem::BuildVersion());
    return 0;
  }
  ::prctl(PR_SET_NAME,
          "tandem-engine");  // tandemd executes it by a descriptor, whose number would be its name
  tandem::engine::SetNcclEnvironment();
  int fd = -1;
  if (argc == 3 && std::strcmp(argv[1], "--fd") == 0) {
    const char* end = argv[2] + std::strlen(argv[2]);
    if (std::from_chars(argv[2], end, fd).ptr != end) fd = -1;
  }
  if (fd < 0) {
    std::fprintf(stderr, "usage: tandem-engine --fd N (started by tandemd), or --version\n");
    return 2;
  }
  // Only Stop and the end of the socket end an engine: a terminal's or a manager's signal to the whole group
  // must not cut launches off before tandemd has drained them.
  for (int signal_number : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) ::signal(signal_number, SIG_IGN);
  tandem::engine::Engine engine{tandem::UniqueFd(fd), MakeBackend};
  engine.SetBuild(tandem::BuildVersion());
  tandem::Status status = engine.Run();
  if (!status.ok()) std::fprintf(stderr, "tandem-engine: %s\n", status.ToString().c_str());
  // Skips destructors of queues whose tasks may be stuck for good: the kernel takes everything back.
  std::fflush(nullptr);
  std::_Exit(status.ok() ? 0 : status.detail().reason == tandem::kContextLost ? 3 : 1);
}
