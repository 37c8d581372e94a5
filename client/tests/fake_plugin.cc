// The fake gRPC plugin as a separate library, for tests of the whole path from tandem_connect on:
// libtandem loads it where TANDEM_GRPC_LIBRARY names it.
#include "client/tests/fake_control.h"

namespace {

std::shared_ptr<tandem::client::FakeDaemon>& Daemon() {
  static auto* daemon = new std::shared_ptr(std::make_shared<tandem::client::FakeDaemon>());
  return *daemon;
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) tandem::client::ClientControl* tandem_grpc_create(
    int, tandem::client::PluginLog*) {
  return new tandem::client::FakeControl(Daemon());
}
// The deadline of the last Prepare, in milliseconds.
__attribute__((visibility("default"))) int64_t fake_plugin_deadline() {
  return Daemon()->prepare_deadline.count();
}
// The daemon says that it drains.
__attribute__((visibility("default"))) void fake_plugin_tell() {
  tandem::client::ControlEvent event;
  event.event.kind = tandem::ClientEvent::Kind::kDraining;
  Daemon()->Tell(event);
}
}
