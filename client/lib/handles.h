// File: handles.h
//
// The handles behind the public classes: client, group, memory. plan_handle.h has those of plans. Each handle
// is thin: it checks the session, asks the gRPC plugin, and keeps what the launch path needs of the answer.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/lib/client_launch/mapped_plan.h"
#include "client/lib/session.h"
#include "tandem/client.h"

namespace tandem::client {

class TensorHandle;

class GroupHandle : public Group, public std::enable_shared_from_this<GroupHandle> {
 public:
  GroupHandle(std::shared_ptr<ClientSession> session, const JoinOptions& options, JoinInfo info);
  ~GroupHandle() override;

  uint64_t id() const override { return info_.group_id; }
  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  uint64_t incarnation() const override { return info_.incarnation; }
  const std::string& gpu_uuid() const override { return gpu_uuid_; }
  const std::string& topology_class() const override { return info_.topology_class; }
  const std::vector<std::vector<int>>& link_counts() const override { return link_counts_; }
  const std::vector<Offer>& offers() const override { return info_.offers; }
  Result<std::shared_ptr<Plan>> Prepare(const std::string& key, const OpRequest& request,
                                        Milliseconds deadline) override;
  Result<PlanInfo> Preview(const OpRequest& request) override;
  Result<std::shared_ptr<SymmetricTensor>> Allocate(const std::vector<int64_t>& shape, DType dtype,
                                                    const std::string& persistent_name,
                                                    Milliseconds deadline) override;
  Status Leave(Milliseconds deadline) override;
  Status Renew(Milliseconds deadline) override;
  Status Suspend(bool keep, Milliseconds deadline) override;
  Status Resume(Milliseconds deadline) override;
  Result<MemoryUsage> UsedMemory() const override { return session_->UsedMemory(id()); }

  const std::shared_ptr<ClientSession>& session() const { return session_; }
  const std::string& name() const { return name_; }
  const std::shared_ptr<ClientGroupState>& state() const { return state_; }
  Milliseconds launch_deadline() const { return launch_deadline_; }
  bool left() const { return left_.load(); }
  // The group's symmetric tensor that [data, data + bytes) lies in; null: none.
  std::shared_ptr<TensorHandle> FindTensor(const std::byte* data, size_t bytes);
  void AddTensor(const std::shared_ptr<TensorHandle>& tensor);

 private:
  // One rendezvous of `key`. `measure`: what is to be timed, if not null.
  Result<std::shared_ptr<Plan>> PrepareOnce(const std::string& key, const OpRequest& request,
                                            const PrepareTuning& tuning, Milliseconds deadline,
                                            PreparedPlan* reported = nullptr);
  // The same after the measurement that `request` asks for.
  Result<std::shared_ptr<Plan>> PrepareTuned(const std::string& key, OpRequest request,
                                             Milliseconds deadline);
  bool HasPlan(const std::string& key);
  // Maps the memory with which this process launches a plan itself.
  Result<std::shared_ptr<MappedPlan>> MapPlan(const PreparedPlan& prepared, const OpRequest& request);
  // The same, once all ranks can launch the plan. Else the plan is released.
  Result<std::shared_ptr<MappedPlan>> ArmPlan(const PreparedPlan& prepared, const OpRequest& request,
                                              Milliseconds deadline);
  // Of client-placed launches; null before the first such plan.
  std::shared_ptr<ClientGroup> client_group();
  // Both steps of a renewal. ABORTED: another rank has begun again.
  // `group`: of client-placed launches; null: there are none.
  Result<RenewalInfo> MeetForRenewal(ClientGroup* group, std::chrono::steady_clock::time_point end);
  // The first step of a suspension, behind this rank's launches. Launches go on after an error.
  Status StopForSuspension(std::chrono::steady_clock::time_point end);
  // Maps the memory that has been made for the group, and sets its counters, while no rank launches. `group`: as
  // MeetForRenewal's. May be called again.
  Status TakeMemory(ClientGroup* group, const SuspensionInfo& info);
  // The symmetric tensors that are alive.
  std::vector<std::shared_ptr<TensorHandle>> Tensors();
  // Waits until no launch of this rank's is in flight. DEADLINE_EXCEEDED.
  Status AwaitLaunches(std::chrono::steady_clock::time_point end);
  // Before this rank leaves: tandemd learns how many client-placed launches have ended here.
  void ReportFinalProgress();

  const std::shared_ptr<ClientSession> session_;
  const JoinInfo info_;
  const std::string name_;
  const int rank_, world_size_;
  const Milliseconds launch_deadline_;
  const bool autotune_;  // the group's option
  std::string gpu_uuid_;
  std::vector<std::vector<int>> link_counts_;
  const std::shared_ptr<ClientGroupState> state_;
  std::atomic<bool> left_{false};
  std::atomic<bool> leave_unanswered_{false};  // a call of Leave has failed, or was cancelled
  std::mutex plans_mutex_;
  std::map<uint64_t, std::weak_ptr<Plan>> plans_;
  std::shared_ptr<ClientGroup> client_group_;  // guarded by `plans_mutex_`; made for the first such plan
  std::mutex suspension_mutex_;                // one call of Suspend or Resume at a time
  std::vector<uint64_t> suspended_segments_;   // guarded by suspension_mutex_: of the group, that members map
  std::mutex tensors_mutex_;
  std::vector<std::weak_ptr<TensorHandle>> tensors_;
  // The tensor of an Allocate that was cancelled, for the next one that asks for the same; 0: there is none.
  uint64_t TakeCancelled(const std::vector<int64_t>& shape, DType dtype);
  struct CancelledTensor {
    std::vector<int64_t> shape;
    DType dtype = DType::kF32;
    uint64_t tensor = 0;
  };
  std::vector<CancelledTensor> cancelled_;  // guarded by tensors_mutex_
};

// Memory of the client's own, made or given as a descriptor.
class RegisteredMemory final : public Memory {
 public:
  RegisteredMemory(std::shared_ptr<ClientSession> session, uint64_t registration_id,
                   std::shared_ptr<DeviceMapping> mapping, size_t bytes, std::string gpu_uuid);
  ~RegisteredMemory() override;
  uint64_t registration_id() const override { return registration_id_; }
  std::byte* data() const override { return mapping_->data(); }
  const std::shared_ptr<ClientSession>& session() const { return session_; }
  size_t bytes() const override { return bytes_; }
  const std::string& gpu_uuid() const override { return gpu_uuid_; }

 private:
  const std::shared_ptr<ClientSession> session_;
  const uint64_t registration_id_;
  const std::shared_ptr<DeviceMapping> mapping_;
  const size_t bytes_;
  const std::string gpu_uuid_;
  const UsageLedger::Entry counted_;
};

// Memory of the user's own on a GPU, named by its address.
class ForeignClientMemory final : public Memory {
 public:
  ForeignClientMemory(std::shared_ptr<ClientSession> session,
                      std::shared_ptr<ForeignRegistration> registration, std::byte* data, size_t bytes)
      : session_(std::move(session)), registration_(std::move(registration)), data_(data), bytes_(bytes) {}
  ~ForeignClientMemory() override;
  uint64_t registration_id() const override { return registration_->id(); }
  std::byte* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }
  uint64_t registration_offset() const override {
    return reinterpret_cast<uintptr_t>(data_) - registration_->range().base();
  }
  Status Check() const override;
  const std::string& gpu_uuid() const override { return registration_->range().gpu_uuid; }
  const std::shared_ptr<ClientSession>& session() const { return session_; }
  const std::shared_ptr<ForeignRegistration>& registration() const { return registration_; }

 private:
  const std::shared_ptr<ClientSession> session_;
  std::shared_ptr<ForeignRegistration> registration_;
  std::byte* const data_;
  const size_t bytes_;
};

class TensorHandle final : public SymmetricTensor, public std::enable_shared_from_this<TensorHandle> {
 public:
  // `owned_tensor`: freed with the handle; 0: not.
  static Result<std::shared_ptr<SymmetricTensor>> Make(std::shared_ptr<GroupHandle> group,
                                                       const RendezvousInfo& info, uint64_t owned_tensor);
  ~TensorHandle() override;

  uint64_t registration_id() const override { return registration_id_; }
  std::byte* data() const override { return Buffer(rank_); }
  const std::string& gpu_uuid() const override { return group_->gpu_uuid(); }
  size_t bytes() const override { return bytes_; }
  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(segments_.size()); }
  Result<std::byte*> GetBuffer(int peer, const std::vector<int64_t>& shape, DType dtype,
                               size_t offset_bytes) const override;
  std::span<uint32_t> SignalPad(int peer) const override;
  Status PutSignal(int peer, int channel, Milliseconds timeout) override;
  Status WaitSignal(int peer, int channel, Milliseconds timeout) override;
  Status Barrier(int channel, Milliseconds timeout) override;
  int channels() const override;
  const GroupHandle& group() const { return *group_; }
  // `peer`'s tensor at the place of [data, …) in this rank's.
  std::byte* PeerOf(const std::byte* data, int peer) const { return Buffer(peer) + (data - this->data()); }
  Status StreamWriteValue32(StreamRef stream, int peer, size_t offset_bytes, uint32_t value) override;
  Status Memset32(StreamRef stream, int peer, size_t offset_bytes, uint32_t value, size_t count) override;

  // Copies this rank's contents to memory of the process, for RestoreContents. RESOURCE_EXHAUSTED.
  Status SaveContents();
  // Copies them back. Nothing where none are saved.
  Status RestoreContents();
  void DropContents() { saved_.reset(); }

 private:
  using Clock = std::chrono::steady_clock;
  // The contents of a tensor, while its group sleeps.
  struct Contents {
    std::vector<std::byte> buffer, pad;
  };
  std::byte* Buffer(int peer) const { return segments_[static_cast<size_t>(peer)]->data() + buffer_offset_; }
  Status CheckPeer(int peer) const;
  Status CheckSignal(int peer, int channel) const;
  // Word of the signals from `from` to `to`.
  uint32_t* SignalWord(int to, int from, int channel) const;
  // Swaps `from` for `to` in a word once it holds `from`; false if `deadline` came first.
  Result<bool> Exchange(uint32_t* word, uint32_t from, uint32_t to, Clock::time_point deadline) const;
  // Progress of a barrier, by rank as bits: `put`, this rank has signalled it; `got`, its signal was taken.
  struct BarrierProgress {
    uint32_t put = 0, got = 0;
  };
  Status MeetAll(int channel, Clock::time_point deadline, BarrierProgress* progress);
  // The words of [offset_bytes, + 4 * count) of the peer's tensor.
  Result<uint32_t*> Words(int peer, size_t offset_bytes, size_t count) const;
  ClientDevice& device() const { return *device_; }

  std::shared_ptr<GroupHandle> group_;
  ClientDevice* device_ = nullptr;  // the session's
  uint64_t registration_id_ = 0, owned_tensor_ = 0;
  int rank_ = 0;
  size_t bytes_ = 0, buffer_offset_ = 0, pad_offset_ = 0, pad_bytes_ = 0;
  std::unique_ptr<Contents> saved_;  // while the group sleeps
  std::mutex barriers_mutex_;
  std::map<int, BarrierProgress> barriers_;  // guarded: of those that have not met all ranks, by channel
  std::vector<std::shared_ptr<DeviceMapping>> segments_;  // by rank
  std::vector<UsageLedger::Entry> counted_;
};

class ClientHandle : public Client {
 public:
  explicit ClientHandle(std::shared_ptr<ClientSession> session) : session_(std::move(session)) {}

  uint64_t session_id() const override { return session_->info().session_id; }
  const std::string& backend() const override { return session_->info().backend; }
  const std::string& daemon_version() const override { return session_->info().daemon_version; }
  const std::vector<GpuDescription>& gpus() const override { return session_->info().gpus; }
  Result<std::shared_ptr<Group>> JoinGroup(const JoinOptions& options) override;
  Result<uint64_t> Empty(const std::vector<int64_t>& shape, DType dtype, const std::string& gpu_uuid,
                         const std::string& persistent_name) override;
  Result<std::shared_ptr<SymmetricTensor>> Rendezvous(uint64_t tensor, const std::shared_ptr<Group>& group,
                                                      Milliseconds deadline) override;
  Status Free(uint64_t tensor) override;
  Result<std::shared_ptr<Memory>> RegisterFd(int fd, size_t bytes, const std::string& gpu_uuid) override;
  Result<std::shared_ptr<Memory>> AllocateRegistered(size_t bytes, const std::string& gpu_uuid) override;
  Result<std::shared_ptr<Memory>> RegisterCuda(const void* device_pointer, size_t bytes) override;
  void OnEvent(std::function<void(const ClientEvent&)> callback) override;
  Result<MemoryUsage> UsedMemory() const override { return session_->UsedMemory(); }
  bool IsAskedToSuspend(int64_t step) override;
  Result<bool> SuspendAsAsked(bool keep) override;
  Status Suspend(bool keep, Milliseconds deadline) override;
  Status Resume(Milliseconds deadline) override;
  Status BeginCheckpoint(Milliseconds deadline) override;
  Status EndCheckpoint(Milliseconds deadline) override;
  Status Check() override;
  Status Detach() override;

 private:
  using Groups = std::vector<std::shared_ptr<GroupHandle>>;
  void AddGroup(const std::shared_ptr<GroupHandle>& group);
  // The groups that have not been left, in the order of their ids.
  Groups JoinedGroups();
  // Those of them that are not broken.
  Groups LiveGroups();
  // Resumes these groups, whatever becomes of the others. The first failure, with the names of those that sleep on.
  static Status ResumeAll(const Groups& groups, std::chrono::steady_clock::time_point end);

  const std::shared_ptr<ClientSession> session_;
  std::mutex groups_mutex_;
  std::vector<std::weak_ptr<GroupHandle>> groups_;  // guarded
};

// Client::AllocateRegistered of a session's.
Result<std::shared_ptr<Memory>> AllocateRegistered(const std::shared_ptr<ClientSession>& session,
                                                   size_t bytes, const std::string& gpu_uuid);

// Connects through `control`: Client::Connect with the real one, tests with a fake. `device`: as in
// Session::Attach.
Result<std::shared_ptr<Client>> ConnectThrough(std::unique_ptr<ClientControl> control,
                                               const ConnectOptions& options,
                                               std::shared_ptr<ClientDevice> device = nullptr);

}  // namespace tandem::client
