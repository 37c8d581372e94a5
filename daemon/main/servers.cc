#include "daemon/main/servers.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <utility>

#include "common/log.h"
#include "daemon/admin/bounded_admin.h"
#include "daemon/main/peer_listener.h"
#include "daemon/service/tandem_service.h"

namespace tandem::daemon {
namespace {

// Threads of one server beside the threads of the sessions' calls. They serve operators' calls and calls that
// are refused or answered at once, and wait for the next call.
constexpr uint64_t kSpareThreads = 64 + kMaxAdminCalls;

// A connection without a call under way is closed after this time. A session has its stream of events.
constexpr int kIdleMs = 5000;
// Calls under way on one connection: a session's, and some that are answered with a refusal.
constexpr int kSpareStreams = 64;

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

static PeerListenerOptions ClientListenerOptions(const Config& config, Control& control) {
  PeerListenerOptions options;
  options.path = ClientSocketPath(config);
  options.group = config.socket_group;
  options.mode = 0660;
  options.bounded = true;
  // As many as may attach at the same moment.
  options.limits.strangers_per_uid = control.options().limits.sessions_per_uid;
  options.limits.strangers = control.options().limits.sessions;
  options.use = DescriptorUse::kClient;
  options.sessions = [&control] { return control.SessionIds(); };
  return options;
}

// A server and its socket.
struct Listening {
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<PeerListener> listener;
};

static Status StartAt(grpc::ServerBuilder& builder, PeerListenerOptions options, Listening& at,
                      Status* group_missing = nullptr) {
  at.server = builder.BuildAndStart();
  if (at.server == nullptr) return Unavailable("cannot serve " + options.path);
  TANDEM_ASSIGN_OR_RETURN(at.listener,
                          PeerListener::Start(std::move(options), at.server.get(), group_missing));
  at.listener->Begin();  // calls ask `at` whose they are
  return Status::Ok();
}

struct Servers::Parts {
  Parts(const Config& config, Control& control, const AdminSources& sources)
      : client_path(ClientSocketPath(config)),
        admin_path(AdminSocketPath(config)),
        tandem(control, [this](const std::string& peer,
                               uint64_t session) { client.listener->Authenticated(peer, session); }),
        tandem_for_admin(control),
        admin(sources, kMaxReplyBytes, ViewBy(sources.viewer), ViewBy(sources.manager)),
        bounded_admin(admin,
                      [this](const std::string& peer) -> std::optional<uint32_t> {
                        const std::optional<Caller> caller = client.listener->CallerOf(peer);
                        if (!caller.has_value()) return std::nullopt;
                        return caller->uid;
                      }),
        admin_for_admin(sources),
        admin_control(sources) {}
  // The view of a connection to the clients' socket.
  AdminService::ViewOf ViewBy(const std::function<Viewer(const Caller&)>& view) {
    return [this, view](const std::string& peer) {
      const std::optional<Caller> caller = client.listener->CallerOf(peer);
      return caller.has_value() && view ? view(*caller) : Viewer::OfNone();
    };
  }

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
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                               static_cast<int>(control.options().limits.calls_per_session) + kSpareStreams);
    builder.RegisterService(&parts->tandem);
    builder.RegisterService(&parts->bounded_admin);
    Status group_missing;
    TANDEM_RETURN_IF_ERROR(
        StartAt(builder, ClientListenerOptions(config, control), parts->client, &group_missing));
    if (!group_missing.ok()) log::Warning(group_missing.message() + ": only tandemd's own group may connect");
  }
  // The plugin reaches every server that is built from here on: the administrators' only.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  {
    grpc::ServerBuilder builder;
    Configure(builder, control.options().limits);
    builder.RegisterService(&parts->tandem_for_admin);
    builder.RegisterService(&parts->admin_for_admin);
    builder.RegisterService(&parts->admin_control);
    PeerListenerOptions options;
    options.path = parts->admin_path;
    TANDEM_RETURN_IF_ERROR(StartAt(builder, std::move(options), parts->administrators));
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

std::vector<FileRepair> Servers::Mend() {
  std::vector<FileRepair> repairs;
  const auto mend = [&repairs](const std::string& path, PeerListener& listener) {
    const Result<bool> mended = listener.Mend();
    if (!mended.ok() || *mended) repairs.push_back({path, mended.status()});
  };
  mend(parts_->client_path, *parts_->client.listener);
  mend(parts_->admin_path, *parts_->administrators.listener);
  return repairs;
}

Status Servers::DialSelf() const {
  TANDEM_RETURN_IF_ERROR(AskStats(parts_->client_path));
  return AskStats(parts_->admin_path);
}

}  // namespace tandem::daemon
