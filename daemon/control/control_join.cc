// Joining a group: ranks meet under a name (JoinMeeting), are seated and compared, and the last one makes the
// group.
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "daemon/control/background_worker.h"
#include "daemon/control/control.h"
#include "daemon/control/registry.h"
#include "daemon/control/validate.h"
#include "daemon/topology/shared_gpus.h"

namespace tandem::daemon {
namespace {

// Names of ended groups kept for their incarnation count.
constexpr size_t kMaxIdleNames = 4096;

std::string ScopeOf(uint32_t uid, const v1::JoinGroupRequest& request) {
  // The job key has any bytes; lengths first keep scopes apart.
  return std::to_string(uid) + "/" + std::to_string(request.job_key().size()) + "/" + request.job_key() +
         "/" + request.name();
}

std::string HostId() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

// The kernel's id of this boot: what clients in containers with another hostname may send instead.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string RankList(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

Status WrongSeat(const std::string& field, const std::string& text, int rank) {
  return InvalidArgument(text).WithDetail(
      {.reason = "JOIN_MISMATCH", .who = "rank " + std::to_string(rank), .field = field});
}

void EndMeeting(JoinMeeting& meeting, const Status& status) {
  meeting.phase = Meeting::Phase::kDone;
  meeting.status = status;
  meeting.changed.notify_all();
}

}  // namespace

Waiter::Clock::time_point JoinMeeting::Deadline() const {
  return std::min_element(seats.begin(), seats.end(),
                          [](const auto& a, const auto& b) { return a.second.deadline < b.second.deadline; })
      ->second.deadline;
}

Result<int> Control::FindGpu(const std::string& uuid) const {
  Result<int> gpu = options_.topology.Find(uuid);
  if (!gpu.ok()) return gpu.status().WithDetail({.reason = "NO_GPU", .who = {}, .field = "gpu_uuid"});
  return gpu;
}

Status Control::SeatLocked(NameEntry& entry, const SessionRef& session, const v1::JoinGroupRequest& request,
                           int gpu, const Waiter& waiter) {
  const std::string name = "group '" + request.name() + "': ";
  const std::string who = "rank " + std::to_string(request.rank());
  const int world = request.world_size();
  if (world < 1 || world > plan::kMaxWorldSize) {
    return WrongSeat("world_size",
                     name + who + " asks for world size " + std::to_string(world) + "; 1 to " +
                         std::to_string(plan::kMaxWorldSize) + " are possible",
                     request.rank());
  }
  if (request.rank() < 0 || request.rank() >= world) {
    return Status(Code::kOutOfRange, name + who + " is out of range for world size " + std::to_string(world),
                  {.reason = "JOIN_MISMATCH", .who = who, .field = "rank"});
  }
  if (!request.host_id().empty() && request.host_id() != HostId() && request.host_id() != BootId()) {
    return Status(Code::kFailedPrecondition,
                  name + who + " is on another host, '" + request.host_id() + "'; a group lives on one node",
                  {.reason = "OTHER_HOST", .who = who, .field = "host_id"});
  }
  JoinMeeting& meeting = *entry.joining;
  for (const auto& [rank, seat] : meeting.seats) {
    const v1::JoinGroupRequest& other = seat.request;
    const std::string they = "rank " + std::to_string(rank);
    if (other.world_size() != world) {
      return WrongSeat("world_size",
                       name + they + " has world_size " + std::to_string(other.world_size()) + ", " + who +
                           " has " + std::to_string(world),
                       request.rank());
    }
    if (seat.session == session) {
      return Status(Code::kAlreadyExists,
                    name + who + " is asked for by the session that is " + they + " already",
                    {.reason = "JOINED", .who = they, .field = "rank"});
    }
    if (rank == request.rank()) {
      return Status(Code::kAlreadyExists,
                    name + who + " is taken by pid " + std::to_string(seat.session->peer.pid) + "; pid " +
                        std::to_string(session->peer.pid) + " asks for it too",
                    {.reason = "JOIN_MISMATCH", .who = who, .field = "rank"});
    }
    if (seat.gpu == gpu) {
      return WrongSeat("gpu_uuid",
                       name + they + " and " + who + " both use GPU " + request.gpu_uuid() +
                           "; a group has one rank per GPU",
                       request.rank());
    }
    if (other.launch_deadline_ms() != request.launch_deadline_ms()) {
      return WrongSeat("launch_deadline_ms",
                       name + they + " has launch_deadline_ms " + std::to_string(other.launch_deadline_ms()) +
                           ", " + who + " has " + std::to_string(request.launch_deadline_ms()),
                       request.rank());
    }
    if (other.on_slow_placement() != request.on_slow_placement()) {
      return WrongSeat("on_slow_placement", name + they + " and " + who + " do not ask for the same",
                       request.rank());
    }
    std::map<std::string, std::string> mine(request.options().begin(), request.options().end());
    std::map<std::string, std::string> theirs(other.options().begin(), other.options().end());
    for (const auto& [key, value] : theirs) mine.try_emplace(key, "(absent)");
    for (const auto& [key, value] : mine) {
      const std::string their_value = theirs.contains(key) ? theirs[key] : "(absent)";
      if (value != their_value) {
        return WrongSeat("options",
                         name + "option '" + key + "' is '" + their_value + "' on " + they + " and '" +
                             value + "' on " + who,
                         request.rank());
      }
    }
  }
  meeting.seats[request.rank()] = {session, request, gpu, waiter.deadline};
  meeting.given_up.erase(request.rank());
  std::erase_if(meeting.given_up, [&](const auto& seat) { return seat.second.session == session; });
  return Status::Ok();
}

// Waits until no earlier incarnation stands in the way. A member of a broken or closing incarnation that
// joins its name again leaves it by that.
Result<int> Control::AwaitNameFreeLocked(Lock& lock, const std::string& scope, const SessionRef& session,
                                         const v1::JoinGroupRequest& request, const Waiter& waiter) {
  for (;;) {
    TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
    const std::shared_ptr<Group> current = registry_->names[scope].current;
    if (!current) return 0;
    const bool ending = current->state == GroupState::kBroken || current->state == GroupState::kClosing;
    for (size_t rank = 0; rank < current->members.size(); ++rank) {
      const Member& member = current->members[rank];
      if (member.session_id != session->id || member.left) continue;
      if (!ending) {
        return Status(
            Code::kAlreadyExists,
            "this session is rank " + std::to_string(rank) + " of group '" + request.name() + "' already",
            {.reason = "JOINED", .who = "rank " + std::to_string(rank), .field = "name"});
      }
      MemberLeftLocked(current, static_cast<int>(rank), false);
    }
    if (registry_->names[scope].current != current) continue;
    if (!ending && current->state == GroupState::kReady) {
      return Status(Code::kAlreadyExists,
                    "group '" + request.name() + "' is complete: its " +
                        std::to_string(current->members.size()) + " ranks are taken by other processes",
                    {.reason = "JOINED", .who = {}, .field = "name"});
    }
    const std::shared_ptr<std::condition_variable> freed = registry_->names[scope].freed;
    if (!waiter.Wait(lock, *freed, [&] {
          return registry_->names[scope].current != current || registry_->stopping || session->ended ||
                 current->state == GroupState::kReady;
        })) {
      if (waiter.Cancelled()) return Status(Code::kCancelled, "the caller went away");
      if (current->state == GroupState::kJoining) {
        return Status(Code::kDeadlineExceeded,
                      "incarnation " + std::to_string(current->incarnation) + " of group '" + request.name() +
                          "' is being made by other processes",
                      {.reason = "OLD_INCARNATION", .who = {}, .field = {}});
      }
      std::vector<int> left;
      for (size_t rank = 0; rank < current->members.size(); ++rank) {
        if (!current->members[rank].left) left.push_back(static_cast<int>(rank));
      }
      return Status(Code::kDeadlineExceeded,
                    "incarnation " + std::to_string(current->incarnation) + " of group '" + request.name() +
                        "' has not ended: " + RankList(left) + " of it have not left",
                    {.reason = "OLD_INCARNATION", .who = RankList(left), .field = {}});
    }
  }
}

Result<v1::JoinGroupReply> Control::JoinGroup(const SessionRef& session, const v1::JoinGroupRequest& request,
                                              const Waiter& waiter) {
  TANDEM_RETURN_IF_ERROR(ValidateJoin(request));
  const Result<int> gpu = FindGpu(request.gpu_uuid());
  const std::string scope = ScopeOf(session->peer.uid, request);
  Lock lock(registry_->mutex);
  TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
  if (registry_->draining) {
    return Unavailable("the daemon is draining: no new groups")
        .WithDetail({.reason = "DRAINING", .who = {}, .field = {}});
  }
  TANDEM_ASSIGN_OR_RETURN([[maybe_unused]] int free,
                          AwaitNameFreeLocked(lock, scope, session, request, waiter));
  NameEntry& entry = registry_->names[scope];
  if (!entry.joining) entry.joining = std::make_shared<JoinMeeting>();
  const std::shared_ptr<JoinMeeting> meeting = entry.joining;
  Status wrong = gpu.ok() ? registry_->ledger.Check(session->payer(), Resource::kGroups, 1)
                          : gpu.status().WithContext("rank " + std::to_string(request.rank()));
  if (wrong.ok()) wrong = SeatLocked(entry, session, request, *gpu, waiter);
  if (!wrong.ok()) {
    // Whoever waits would wait in vain: all ranks hear of it at once.
    EndMeeting(*meeting, wrong);
    entry.joining.reset();
    ForgetNameLocked(scope);
    return wrong;
  }
  if (meeting->seats.size() == static_cast<size_t>(request.world_size())) {
    Result<std::shared_ptr<Group>> group = MakeGroupLocked(entry, scope, *meeting);
    entry.joining.reset();
    meeting->phase = Meeting::Phase::kWorking;
    Status status = group.status();
    if (group.ok()) {
      lock.unlock();
      {
        std::lock_guard work((*group)->work);
        status = Install(**group, ForAllRanks(*group, meeting->Deadline()));
      }
      lock.lock();
      if (!(*group)->broken.ok()) status = (*group)->broken;
      if (status.ok()) {
        (*group)->state = GroupState::kReady;
        meeting->group = *group;
        if (!SameEnginesLocked(**group)) {
          // One that had been told ended before the last one was: its end passed over a group that was still
          // joining.
          (*group)->suspended = true;
          UninstallLocked(**group, -1);
          background_->Post([this, group = *group] { RestoreGroup(group); });
        }
      } else {
        DestroyGroupLocked(*group);
      }
    }
    EndMeeting(*meeting, status);
    registry_->names[scope].freed->notify_all();
    ForgetNameLocked(scope);
  } else {
    const bool done =
        waiter.Wait(lock, meeting->changed, [&] { return meeting->phase == Meeting::Phase::kDone; });
    if (!done && meeting->phase == Meeting::Phase::kWaiting) {
      std::vector<int> missing;
      for (int rank = 0; rank < request.world_size(); ++rank) {
        if (!meeting->seats.contains(rank)) missing.push_back(rank);
      }
      meeting->given_up.insert(meeting->seats.extract(request.rank()));
      if (meeting->seats.empty()) {
        registry_->names[scope].joining.reset();
        ForgetNameLocked(scope);
      }
      if (waiter.Cancelled()) return Status(Code::kCancelled, "the caller went away");
      return Status(Code::kDeadlineExceeded,
                    "group '" + request.name() + "': " + RankList(missing) + " did not join in time",
                    {.reason = "RANK_LATE", .who = RankList(missing), .field = {}});
    }
    // The engines are being told: no longer than until the first of the ranks' deadlines.
    meeting->changed.wait(lock, [&] { return meeting->phase == Meeting::Phase::kDone; });
  }
  TANDEM_RETURN_IF_ERROR(meeting->status);
  v1::JoinGroupReply reply;
  FillJoinReplyLocked(*meeting->group, &reply);
  return reply;
}

Result<std::shared_ptr<Group>> Control::MakeGroupLocked(NameEntry& entry, const std::string& scope,
                                                        JoinMeeting& meeting) {
  auto group = std::make_shared<Group>();
  const JoinMeeting::Seat& first = meeting.seats.begin()->second;
  group->id = registry_->NewGroupId();
  group->scope = scope;
  group->name = first.request.name();
  group->payer = first.session->payer();
  group->incarnation = ++entry.incarnation;
  group->options.insert(first.request.options().begin(), first.request.options().end());
  group->launch_deadline_ms = first.request.launch_deadline_ms() != 0
                                  ? first.request.launch_deadline_ms()
                                  : static_cast<uint64_t>(options_.default_launch_deadline.count());
  group->on_slow_placement = static_cast<OnSlowPlacement>(first.request.on_slow_placement());
  std::vector<int> gpus;
  for (const auto& [rank, seat] : meeting.seats) {
    if (seat.session->ended) {
      return Unavailable("rank " + std::to_string(rank) + " of group '" + group->name +
                         "' ended while joining");
    }
    gpus.push_back(seat.gpu);
    Member member;
    member.session = seat.session;
    member.session_id = seat.session->id;
    member.pid = seat.session->peer.pid;
    member.gpu = seat.gpu;
    group->members.push_back(std::move(member));
  }
  TANDEM_RETURN_IF_ERROR(CheckPlacement(PlacementLocked(*group), group->on_slow_placement)
                             .WithContext("group '" + group->name + "'"));
  TANDEM_RETURN_IF_ERROR(registry_->ledger.Charge(group->payer, Resource::kGroups, 1));
  for (const auto& [rank, seat] : meeting.seats) seat.session->groups.insert(group->id);
  group->context.topology = Subset(options_.topology, gpus);
  group->context.packet_kernels = options_.backend == "cuda";
  group->context.fused_kernels = true;
  group->context.fused_by_choice = options_.fused_by_choice;
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    const std::string why = engines_.StatusOf(gpus[rank]).no_fused_kernels;
    if (why.empty()) continue;
    group->context.fused_kernels = false;
    group->context.no_fused_kernels =
        "the engine of rank " + std::to_string(rank) + " has no fused kernels: " + why;
    break;
  }
  int& kernel_sms = group->context.kernel_sms;
  for (const int gpu : gpus) {
    const int sms = static_cast<int>(engines_.StatusOf(gpu).kernel_sms);
    if (sms > 0 && (kernel_sms == 0 || sms < kernel_sms)) kernel_sms = sms;
  }
  if (SharesDevice(group->context.topology)) {
    group->context.nccl = false;
    group->context.no_nccl = "ranks of the group share a GPU, which NCCL refuses";
  }
  group->topology_class = TopologyClassName(Classify(group->context.topology));
  registry_->groups[group->id] = group;
  entry.current = group;
  return group;
}

Placement Control::PlacementLocked(const Group& group) const {
  std::vector<RankPlacement> ranks;
  for (size_t rank = 0; rank < group.members.size(); ++rank) {
    const Member& member = group.members[rank];
    ranks.push_back({"rank " + std::to_string(rank), member.session->mps, engines_.StatusOf(member.gpu).mps});
  }
  return DescribePlacement(options_.backend, ranks);
}

void Control::FillJoinReplyLocked(const Group& group, v1::JoinGroupReply* reply) const {
  reply->set_group_id(group.id);
  reply->set_incarnation(group.incarnation);
  reply->set_topology_class(group.topology_class);
  const Placement placement = PlacementLocked(group);
  reply->set_placement(placement.text);
  reply->set_slow_placement(placement.slow);
  reply->set_generation(group.generation);
  const int world = group.context.topology.size();
  for (int i = 0; i < world; ++i) {
    reply->add_gpu_uuids(group.context.topology.gpus[static_cast<size_t>(i)].uuid);
    for (int j = 0; j < world; ++j)
      reply->add_link_counts(i == j ? 0 : group.context.topology.LinkCount(i, j));
  }
  const TopologyClass topology_class = Classify(group.context.topology);
  for (uint32_t op = static_cast<uint32_t>(Op::kAllReduce); op <= static_cast<uint32_t>(Op::kEmpty); ++op) {
    for (Algorithm algorithm : plan::AlgorithmsOf(static_cast<Op>(op))) {
      v1::Offer* offer = reply->add_offers();
      offer->set_op(op);
      offer->set_algorithm(static_cast<uint32_t>(algorithm));
      // What this group can never run, whatever the shapes; bounds by size are told by each plan.
      if (algorithm == Algorithm::kFused && !group.context.fused_kernels) {
        offer->set_reason(group.context.no_fused_kernels);
      } else if (algorithm == Algorithm::kLowLatency && !group.context.packet_kernels) {
        offer->set_reason("needs the CUDA backend; this group's is " + options_.backend);
      } else if (algorithm == Algorithm::kHybridCubeMesh &&
                 topology_class != TopologyClass::kHybridCubeMesh) {
        offer->set_reason("needs a hybrid cube mesh; this group is " + group.topology_class);
      } else if (algorithm == Algorithm::kNccl && !group.context.nccl) {
        offer->set_reason(group.context.no_nccl);
      } else {
        offer->set_available(true);
      }
    }
  }
}

// Of ended groups a number of names is kept for their incarnation count; what never became a group leaves
// nothing.
void Control::ForgetNameLocked(const std::string& scope) {
  const auto it = registry_->names.find(scope);
  if (it == registry_->names.end() || it->second.current || it->second.joining) return;
  if (it->second.incarnation == 0 || registry_->names.size() > kMaxIdleNames) registry_->names.erase(it);
}

void Control::FailJoinsOfLocked(const Session& session, const std::string& why) {
  std::vector<std::string> ended;
  for (auto& [scope, entry] : registry_->names) {
    if (!entry.joining) continue;
    for (const auto* seats : {&entry.joining->seats, &entry.joining->given_up}) {
      const auto own = std::find_if(seats->begin(), seats->end(),
                                    [&](const auto& seat) { return seat.second.session.get() == &session; });
      if (own == seats->end()) continue;
      const auto& [rank, seat] = *own;
      EndMeeting(
          *entry.joining,
          Status(Code::kUnavailable,
                 "rank " + std::to_string(rank) + " (pid " + std::to_string(session.peer.pid) +
                     ") of group '" + seat.request.name() + "' was lost while the group was joining: " + why,
                 {.reason = "RANK_LOST", .who = "rank " + std::to_string(rank), .field = {}}));
      entry.joining.reset();
      ended.push_back(scope);
      break;
    }
  }
  for (const std::string& scope : ended) ForgetNameLocked(scope);
}

}  // namespace tandem::daemon
