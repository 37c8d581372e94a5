#include "tests/integration/driver/commands.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <chrono>
#include <mutex>
#include <utility>

#include "client/ranks/request_json.h"
#include "common/op_tables.h"
#include "common/unique_fd.h"

namespace tandem::driver {
namespace {

Milliseconds Deadline(const json& command, int fallback_ms = 30000) {
  return Milliseconds(command.value("deadline_ms", fallback_ms));
}

json PlanJson(const PlanInfo& info) {
  json rows = json::array();
  for (const PlanInfo::RowRange& range : info.rows)
    rows.push_back({{"last", range.last}, {"algorithm", AlgorithmName(range.algorithm)}});
  json refused = json::array();
  for (const auto& other : info.refused) refused.push_back({AlgorithmName(other.algorithm), other.reason});
  return {{"plan_id", info.plan_id},
          {"algorithm", AlgorithmName(info.algorithm)},
          {"reason", info.reason},
          {"refused", refused},
          {"fused", info.fused},
          {"steps", info.steps},
          {"lanes", info.lanes},
          {"placement", info.placement},
          {"max_rows", info.max_rows},
          {"rows", std::move(rows)},
          {"workspace_bytes", info.workspace_bytes},
          {"group_workspace_bytes", info.group_workspace_bytes},
          {"unshared_workspace_bytes", info.unshared_workspace_bytes},
          {"predicted_us", info.predicted_us},
          {"deterministic", info.deterministic},
          {"determinism", NameOf(info.determinism)},
          {"rounding", info.rounding},
          {"warnings", info.warnings}};
}

// Events from the library's reader thread; shared with the callback, which may outlive the session.
struct EventLog {
  std::mutex mutex;
  json entries = json::array();
};
std::shared_ptr<EventLog> GlobalEvents() {
  static auto log = std::make_shared<EventLog>();
  return log;
}

// A rank's part of a symmetric tensor as this process has it mapped, to be read and filled.
class PeerMemory final : public Memory {
 public:
  PeerMemory(std::shared_ptr<SymmetricTensor> tensor, std::byte* data)
      : tensor_(std::move(tensor)), data_(data) {}
  uint64_t registration_id() const override { return tensor_->registration_id(); }
  std::byte* data() const override { return data_; }
  size_t bytes() const override { return tensor_->bytes(); }
  const std::string& gpu_uuid() const override { return tensor_->gpu_uuid(); }

 private:
  const std::shared_ptr<SymmetricTensor> tensor_;
  std::byte* const data_;
};

constexpr const char* kEventNames[] = {
    "rank_lost",   "group_broken", "rank_left",     "engine_restarted",  "draining",        "late",
    "daemon_lost", "plan_warning", "group_stalled", "suspend_requested", "resume_requested"};

}  // namespace

Result<std::shared_ptr<Group>> Session::FindGroup(const json& command) const {
  auto it = groups_.find(command.value("group", "tp"));
  if (it == groups_.end()) return NotFound("the script has no such group");
  return it->second;
}

Result<std::shared_ptr<Plan>> Session::FindPlan(const json& command) const {
  auto it = plans_.find(command.value("plan", ""));
  if (it == plans_.end()) return NotFound("the script has no such plan");
  return it->second;
}

Result<std::shared_ptr<Memory>> Session::FindMemory(const std::string& name) const {
  auto it = memories_.find(name);
  if (it == memories_.end()) return NotFound("the script has no memory " + name);
  return it->second.memory;
}

void Session::Name(const json& command, std::shared_ptr<Memory> memory, std::string gpu) {
  NamedMemory& named = memories_[command.value("memory", "")];
  named.mirror.reset();
  named.memory = std::move(memory);
  named.gpu = std::move(gpu);
}

Result<std::vector<Binding>> Session::Bindings(const json& command) const {
  std::vector<Binding> bindings;
  for (const json& entry : command.value("bindings", json::array())) {
    if (entry[0].is_number()) {  // an address
      bindings.push_back(
          {nullptr, entry[1].get<uint64_t>(), reinterpret_cast<void*>(entry[0].get<uint64_t>())});
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Memory> memory, FindMemory(entry[0].get<std::string>()));
    bindings.push_back({memory.get(), entry[1].get<uint64_t>()});
  }
  return bindings;
}

Status Session::Connect(const json& command, json* reply) {
  options_.runtime_dir = command.value("runtime_dir", "");
  options_.deadline = Deadline(command, 5000);
  options_.name = command.value("name", "test");
  TANDEM_ASSIGN_OR_RETURN(client_, Client::Connect(options_));
  client_->OnEvent([log = GlobalEvents()](const ClientEvent& event) {
    std::lock_guard lock(log->mutex);
    log->entries.push_back({{"kind", kEventNames[static_cast<int>(event.kind)]},
                            {"group_id", event.group_id},
                            {"rank", event.rank},
                            {"code", CodeName(event.status.code())},
                            {"message", event.status.message()}});
  });
  (*reply)["session_id"] = client_->session_id();
  (*reply)["backend"] = client_->backend();
  json gpus = json::array();
  for (const auto& gpu : client_->gpus()) gpus.push_back(gpu.uuid);
  (*reply)["gpus"] = gpus;
  return Status::Ok();
}

Status Session::Join(const json& command, json* reply) {
  JoinOptions options;
  options.job_key = command.value("job_key", "0123456789abcdef");
  options.name = command.value("name", "tp");
  options.world_size = command.value("world", 1);
  options.rank = command.value("rank", 0);
  options.gpu_uuid = command.value("gpu", "");
  options.options = command.value("options", std::map<std::string, std::string>{});
  options.deadline = Deadline(command);
  options.launch_deadline = Milliseconds(command.value("launch_deadline_ms", 0));
  const std::string strictness = command.value("on_slow_placement", "allow");
  options.on_slow_placement = ValueOf<OnSlowPlacement>(strictness).value_or(OnSlowPlacement::kAllow);
  TANDEM_ASSIGN_OR_RETURN(auto group, client_->JoinGroup(options));
  (*reply)["group_id"] = group->id();
  (*reply)["incarnation"] = group->incarnation();
  (*reply)["topology_class"] = group->topology_class();
  (*reply)["links"] = group->link_counts();
  json offers = json::array();
  for (const Group::Offer& offer : group->offers()) {
    offers.push_back({{"op", OpName(offer.op)},
                      {"algorithm", AlgorithmName(offer.algorithm)},
                      {"available", offer.available},
                      {"reason", offer.reason}});
  }
  (*reply)["offers"] = offers;
  groups_[command.value("group", options.name)] = group;
  if (home_gpu_.empty()) home_gpu_ = group->gpu_uuid();
  return Status::Ok();
}

Status Session::Allocate(const json& command, json* reply) {
  TANDEM_ASSIGN_OR_RETURN(auto group, FindGroup(command));
  TANDEM_ASSIGN_OR_RETURN(DType dtype, ParseDType(command.value("dtype", "f32")));
  TANDEM_ASSIGN_OR_RETURN(auto tensor, group->Allocate(command.value("shape", std::vector<int64_t>{}), dtype,
                                                       command.value("persistent", ""), Deadline(command)));
  (*reply)["bytes"] = tensor->bytes();
  (*reply)["address"] = reinterpret_cast<uint64_t>(tensor->data());
  Name(command, tensor);
  return Status::Ok();
}

Status Session::Empty(const json& command, json* reply) {
  TANDEM_ASSIGN_OR_RETURN(DType dtype, ParseDType(command.value("dtype", "f32")));
  std::string gpu = command.value("gpu", client_->gpus().empty() ? "" : client_->gpus()[0].uuid);
  TANDEM_ASSIGN_OR_RETURN(uint64_t id, client_->Empty(command.value("shape", std::vector<int64_t>{}), dtype,
                                                      gpu, command.value("persistent", "")));
  tensors_[command.value("tensor", "")] = id;
  (*reply)["tensor_id"] = id;
  return Status::Ok();
}

Status Session::Rendezvous(const json& command, json* reply) {
  TANDEM_ASSIGN_OR_RETURN(auto group, FindGroup(command));
  uint64_t id = command.contains("tensor_id") ? command["tensor_id"].get<uint64_t>()
                                              : tensors_[command.value("tensor", "")];
  TANDEM_ASSIGN_OR_RETURN(auto tensor, client_->Rendezvous(id, group, Deadline(command)));
  (*reply)["bytes"] = tensor->bytes();
  Name(command, tensor);
  return Status::Ok();
}

// {"memory", "peer", "name"}: the peer's part of that tensor, under another name. For "fill" and "read",
// not for launches.
Status Session::Peer(const json& command) {
  const std::string name = command.value("memory", "");
  TANDEM_ASSIGN_OR_RETURN(auto memory, FindMemory(name));
  auto tensor = std::dynamic_pointer_cast<SymmetricTensor>(memory);
  if (tensor == nullptr) return InvalidArgument("not a symmetric tensor");
  const auto bytes = static_cast<int64_t>(tensor->bytes());
  TANDEM_ASSIGN_OR_RETURN(std::byte * data,
                          tensor->GetBuffer(command.value("peer", 0), {bytes}, DType::kF8E4M3));
  Name({{"memory", command.value("name", "")}}, std::make_shared<PeerMemory>(tensor, data),
       memories_.at(name).gpu);
  return Status::Ok();
}

Status Session::Register(const json& command, json* reply) {
  std::string gpu = command.value("gpu", "");
  if (gpu.empty()) {
    TANDEM_ASSIGN_OR_RETURN(auto group, FindGroup(command));
    gpu = group->gpu_uuid();
  }
  TANDEM_ASSIGN_OR_RETURN(auto memory, client_->AllocateRegistered(command.value("bytes", size_t{0}), gpu));
  (*reply)["registration_id"] = memory->registration_id();
  (*reply)["address"] = reinterpret_cast<uint64_t>(memory->data());
  Name(command, memory, gpu);
  return Status::Ok();
}

// Memory that is none, or not as promised: "file", "unsealed", "small".
Status Session::RegisterForeign(const json& command) {
  std::string kind = command.value("kind", "");
  size_t bytes = command.value("bytes", size_t{4096});
  UniqueFd fd;
  if (kind == "file") {
    fd.Reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
  } else {
    fd.Reset(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (::ftruncate(fd.get(), static_cast<off_t>(kind == "small" ? bytes / 2 : bytes)) != 0) {
      return Internal("ftruncate failed");
    }
    if (kind != "unsealed") ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  }
  std::string gpu = command.value("gpu", client_->gpus().empty() ? "" : client_->gpus()[0].uuid);
  return client_->RegisterFd(fd.get(), bytes, gpu).status();
}

Status Session::Prepare(const json& command, json* reply) {
  TANDEM_ASSIGN_OR_RETURN(auto group, FindGroup(command));
  TANDEM_ASSIGN_OR_RETURN(OpRequest request, RequestFromJson(command.value("request", json::object())));
  TANDEM_ASSIGN_OR_RETURN(auto plan, group->Prepare(command.value("key", "k"), request, Deadline(command)));
  (*reply)["plan"] = PlanJson(plan->info());
  plans_[command.value("plan", command.value("key", "k"))] = plan;
  return Status::Ok();
}

Status Session::Launch(const json& command, json* reply) {
  TANDEM_ASSIGN_OR_RETURN(auto plan, FindPlan(command));
  TANDEM_ASSIGN_OR_RETURN(std::vector<Binding> bindings, Bindings(command));
  LaunchOptions options;
  options.deadline = Milliseconds(command.value("launch_deadline_ms", 0));
  options.tag = command.value("tag", "");
  options.rows = command.value("rows", LaunchOptions::kBoundRows);
  TANDEM_ASSIGN_OR_RETURN(RankStream * stream, Stream(command));
  // "stream_kind": streams that no object stands for.
  std::string kind = command.value("stream_kind", "");
  StreamRef ref = kind == "legacy"       ? StreamRef::Cuda(nullptr)
                  : kind == "per_thread" ? StreamRef::Cuda(reinterpret_cast<void*>(2))  // cudaStreamPerThread
                                         : stream->ref();
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < command.value("times", 1); ++i) {
    (*reply)["made"] = i;
    TANDEM_RETURN_IF_ERROR(plan->Launch(ref, bindings, options));
    (*reply)["made"] = i + 1;
  }
  (*reply)["launch_ms"] =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return Status::Ok();
}

Status Session::LaunchWithoutStream(const json& command, json* reply) {
  TANDEM_ASSIGN_OR_RETURN(auto plan, FindPlan(command));
  TANDEM_ASSIGN_OR_RETURN(std::vector<Binding> bindings, Bindings(command));
  LaunchOptions options;
  options.deadline = Milliseconds(command.value("launch_deadline_ms", 0));
  options.tag = command.value("tag", "");
  TANDEM_ASSIGN_OR_RETURN(uint64_t launch, plan->LaunchWithoutStream(bindings, options));
  (*reply)["launch"] = launch;
  return command.value("wait", true) ? plan->WaitLaunch(launch, Deadline(command)) : Status::Ok();
}

Status Session::Signal(const json& command) {
  TANDEM_ASSIGN_OR_RETURN(auto memory, FindMemory(command.value("memory", "")));
  auto tensor = std::dynamic_pointer_cast<SymmetricTensor>(memory);
  if (tensor == nullptr) return InvalidArgument("not a symmetric tensor");
  std::string what = command.value("what", "barrier");
  int channel = command.value("channel", 0), peer = command.value("peer", 0);
  if (what == "put") return tensor->PutSignal(peer, channel, Deadline(command));
  if (what == "wait") return tensor->WaitSignal(peer, channel, Deadline(command));
  return tensor->Barrier(channel, Deadline(command));
}

Status Session::Events(json* reply) {
  auto log = GlobalEvents();
  std::lock_guard lock(log->mutex);
  (*reply)["events"] = log->entries;
  return Status::Ok();
}

Status Session::Execute(const json& command, json* reply) {
  std::string name = command.value("cmd", "");
  if (name == "exit" || name == "nothing") return Status::Ok();
  if (name == "connect") return Connect(command, reply);
  if (name == "events") return Events(reply);
  if (name == "fork_and_connect") return ForkAndConnect(command, reply);
  if (name == "fill") return Fill(command);
  if (name == "read") return Read(command, reply);
  if (name == "differs") return Differs(command, reply);
  if (client_ == nullptr) return FailedPrecondition("the script has not connected");
  if (name == "check") return client_->Check();
  if (name == "join") return Join(command, reply);
  if (name == "allocate") return Allocate(command, reply);
  if (name == "empty") return Empty(command, reply);
  if (name == "rendezvous") return Rendezvous(command, reply);
  if (name == "free") {
    uint64_t id = command.contains("tensor_id") ? command["tensor_id"].get<uint64_t>()
                                                : tensors_[command.value("tensor", "")];
    return client_->Free(id);
  }
  if (name == "peer") return Peer(command);
  if (name == "register") return Register(command, reply);
  if (name == "register_foreign") return RegisterForeign(command);
  if (name == "prepare") return Prepare(command, reply);
  if (name == "launch") return Launch(command, reply);
  if (name == "capture") return Capture(command);
  if (name == "replay") return Replay(command);
  if (name == "launch_threads") return LaunchThreads(command);
  if (name == "pause") return Pause(command);
  if (name == "resume") {
    Resume();
    return Status::Ok();
  }
  if (name == "launch_checked") return LaunchChecked(command, reply);
  if (name == "fork") return Fork(reply);
  if (name == "launch_without_stream") return LaunchWithoutStream(command, reply);
  if (name == "signal") return Signal(command);
  if (name == "sync") {
    TANDEM_ASSIGN_OR_RETURN(RankStream * stream, Stream(command));
    return stream->Synchronize(Deadline(command));
  }
  if (name.starts_with("cuda_")) return CudaMemory(name, command, reply);
  if (name == "drop") {
    memories_.erase(command.value("memory", ""));
    plans_.erase(command.value("plan", ""));
    groups_.erase(command.value("group", ""));
    graphs_.erase(command.value("graph", ""));
    return Status::Ok();
  }
  if (name == "leave") {
    TANDEM_ASSIGN_OR_RETURN(auto group, FindGroup(command));
    return group->Leave(Deadline(command));
  }
  if (name == "renew") {
    TANDEM_ASSIGN_OR_RETURN(auto group, FindGroup(command));
    return group->Renew(Deadline(command));
  }
  if (name == "suspend_group") {
    TANDEM_ASSIGN_OR_RETURN(auto group, FindGroup(command));
    return group->Suspend(command.value("keep", false), Deadline(command));
  }
  if (name == "resume_group") {
    TANDEM_ASSIGN_OR_RETURN(auto group, FindGroup(command));
    return group->Resume(Deadline(command));
  }
  if (name == "suspend_client") return client_->Suspend(command.value("keep", false), Deadline(command));
  if (name == "resume_client") return client_->Resume(Deadline(command));
  if (name == "begin_checkpoint") return client_->BeginCheckpoint(Deadline(command));
  if (name == "end_checkpoint") return client_->EndCheckpoint(Deadline(command));
  if (name == "steps") return RunSteps(command, reply);
  if (name == "detach") return client_->Detach();
  TANDEM_ASSIGN_OR_RETURN(auto plan, FindPlan(command));
  if (name == "wait") return plan->Wait(Deadline(command));
  if (name == "query") {
    TANDEM_ASSIGN_OR_RETURN((*reply)["ended"], plan->Query());
    return Status::Ok();
  }
  if (name == "release") return plan->Release();
  return InvalidArgument("unknown command " + name);
}

}  // namespace tandem::driver
