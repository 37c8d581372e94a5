// Links against the installed library, uses headers of every public kind, and expects the one error that a
// machine without a daemon gives: the gRPC plugin was found and loaded.
#include <tandem/async_input_matmul.h>
#include <tandem/client.h>
#include <tandem/collectives.h>
#include <tandem/host_stream.h>
#include <tandem/log.h>
#include <tandem/pending.h>
#include <tandem/tandem.h>
#include <tandem/version.h>

#include <cstdio>
#include <cstring>

int main() {
  auto stream = tandem::HostStream::Create();
  int runs = 0;
  if (!stream.ok() || !(*stream)->Enqueue([&] { ++runs; }).ok()) return 1;
  if (!(*stream)->Synchronize(std::chrono::seconds(10)).ok() || runs != 1) return 2;
  tandem::ConnectOptions options;
  options.runtime_dir = "/nonexistent";
  auto client = tandem::Client::Connect(options);
  std::printf("%s\n", client.status().ToString().c_str());
  if (client.ok() || client.status().code() != tandem::Code::kUnavailable) return 3;
  if (std::strcmp(tandem::LibraryVersion(), tandem_version()) != 0) return 6;
  if (tandem::LibraryProtocolVersion() != tandem_protocol_version()) return 7;
  if (!tandem::SetLogCallback(nullptr).ok()) return 8;
  if (!tandem::PendingCall::Start([] {}).ok()) return 9;
  if (tandem::Collectives::Make(nullptr).status().code() != tandem::Code::kInvalidArgument) return 5;
  return tandem_abi_version() == TANDEM_ABI_VERSION ? 0 : 4;
}
