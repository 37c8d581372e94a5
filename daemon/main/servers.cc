#include "daemon/main/servers.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <utility>

#include "common/log.h"
#include "daemon/admin/bounded_admin.h"
#include "daemon/main/instance_lock.h"
#include "daemon/main/peer_listener.h"
#include "daemon/service/tandem_service.h"

namespace tandem::daemon {
namespace {

// Threads of one server beside the threads of the sessions' calls. They serve operators' calls and calls that
// are refused or answered at once, and wait for the next call.
constexpr uint64_t kSpareThreads = 64 + kMaxAdminCalls;

void Configure(grpc::ServerBuilder& builder, const ControlLimits& limits) {
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  // One queue with few pollers: calls that wait have threads of their own, and an idle daemon few of them.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 4);
  // gRPC refuses a call that finds no thread. There are threads enough for all calls that the limits let in.
  builder.SetResourceQuota(
      grpc::ResourceQuota("tandemd").SetMaxThreads(static_cast<int>(MostCalls(limits) + kSpareThreads)));
}

// One call that touches the registry: what listens, answers.
Status AskStats(const std::string& socket) {
  auto channel = grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  context.set_wait_for_ready(true);
  admin::v1::GetStatsReply reply;
  grpc::Status status = admin::v1::Admin::NewStub(channel)->GetStats(&context, {}, &reply);
  if (!status.ok())
    return Unavailable("tandemd does not answer at its socket " + socket + ": " + status.error_message());
  return Status::Ok();
}

}  // namespace

// A server and its socket, whose file only the owner may use until ShareSocket opens it.
struct Listening {
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<PeerListener> listener;
};

static Status StartAt(grpc::ServerBuilder& builder, const std::string& path, Listening& at) {
  TANDEM_RETURN_IF_ERROR(RemoveStaleSocket(path));
  at.server = builder.BuildAndStart();
  if (at.server == nullptr) return Unavailable("cannot serve " + path);
  TANDEM_ASSIGN_OR_RETURN(at.listener, PeerListener::Start(path, at.server.get()));
  return Status::Ok();
}

struct Servers::Parts {
  Parts(const Config& config, Control& control, const AdminSources& sources)
      : client_path(ClientSocketPath(config)),
        admin_path(AdminSocketPath(config)),
        tandem(control),
        tandem_for_admin(control),
        admin(sources, kMaxReplyBytes,
              [this, viewer = sources.viewer](const std::string& peer) {
                const std::optional<Caller> caller = client.listener->CallerOf(peer);
                return caller.has_value() && viewer ? viewer(*caller) : Viewer::OfNone();
              }),
        bounded_admin(admin),
        admin_for_admin(sources),
        admin_control(sources) {}
  const std::string client_path, admin_path;
  TandemService tandem, tandem_for_admin;
  AdminService admin;
  BoundedAdmin bounded_admin;  // for the clients' socket, where anybody may call
  AdminService admin_for_admin;
  AdminControlService admin_control;
  Listening client, administrators;
};

Servers::Servers(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Servers::~Servers() {
  auto now = std::chrono::system_clock::now();
  // A call may ask the listener whose it is: the listener outlives the server's calls.
  for (Listening* at : {&parts_->client, &parts_->administrators}) {
    if (at->listener) at->listener->Close();
    if (at->server) at->server->Shutdown(now + std::chrono::seconds(1));
  }
}

Result<std::unique_ptr<Servers>> Servers::Start(const Config& config, Control& control,
                                                const AdminSources& sources) {
  auto parts = std::make_unique<Parts>(config, control, sources);
  // gRPC stays initialised until the process ends. Its shutdown waits up to 10 s for the executor's threads,
  // which large replies start (gRPC 1.51; github.com/grpc/grpc/issues/41050).
  grpc_init();
  grpc::EnableDefaultHealthCheckService(true);
  {
    grpc::ServerBuilder builder;
    Configure(builder, control.options().limits);
    builder.RegisterService(&parts->tandem);
    builder.RegisterService(&parts->bounded_admin);
    TANDEM_RETURN_IF_ERROR(StartAt(builder, parts->client_path, parts->client));
  }
  // The plugin reaches every server that is built from here on: the administrators' only.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  {
    grpc::ServerBuilder builder;
    Configure(builder, control.options().limits);
    builder.RegisterService(&parts->tandem_for_admin);
    builder.RegisterService(&parts->admin_for_admin);
    builder.RegisterService(&parts->admin_control);
    TANDEM_RETURN_IF_ERROR(StartAt(builder, parts->admin_path, parts->administrators));
  }
  Status shared = ShareSocket(parts->client_path, config.socket_group, 0660);
  if (shared.code() == Code::kNotFound) {
    log::Warning(shared.message() + ": only tandemd's own group may connect");
  } else {
    TANDEM_RETURN_IF_ERROR(shared);
  }
  return std::unique_ptr<Servers>(new Servers(std::move(parts)));
}

void Servers::SetHealth(const Health& health) {
  for (grpc::Server* server : {parts_->client.server.get(), parts_->administrators.server.get()}) {
    grpc::HealthCheckServiceInterface* service =
        server == nullptr ? nullptr : server->GetHealthCheckService();
    if (service == nullptr) continue;
    service->SetServingStatus("liveness", health.live);
    for (const char* name : {"", "readiness", "tandem.v1.Tandem"})
      service->SetServingStatus(name, health.ready);
  }
}

std::string Servers::CallerOf(const std::string& peer) const {
  const std::optional<Caller> caller = parts_->administrators.listener->CallerOf(peer);
  return caller.has_value() ? CallerText(*caller) : "";
}

Status Servers::DialSelf() const {
  TANDEM_RETURN_IF_ERROR(AskStats(parts_->client_path));
  return AskStats(parts_->admin_path);
}

}  // namespace tandem::daemon
