// File: commands.h
//
// tandem-test-client's commands: each is one call of the client library, asked for by a JSON line and
// answered by one. Objects (groups, plans, memories, streams) live under names that the script gives them.
// The same commands work on every backend: streams, graphs and the filling of memory are RankDevice's.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/device/rank_device.h"
#include "tandem/client.h"

namespace tandem::driver {

using nlohmann::json;

class Session {
 public:
  Session();
  ~Session();  // resumes streams that stand still
  // Executes `command["cmd"]`; the reply's fields beside "ok" go to `reply`.
  Status Execute(const json& command, json* reply);

 private:
  Status Connect(const json& command, json* reply);
  Status Join(const json& command, json* reply);
  Status Allocate(const json& command, json* reply);
  Status Empty(const json& command, json* reply);
  Status Rendezvous(const json& command, json* reply);
  Status Peer(const json& command);
  Status Register(const json& command, json* reply);
  Status RegisterForeign(const json& command);
  Status Prepare(const json& command, json* reply);
  Status Launch(const json& command, json* reply);
  Status LaunchWithoutStream(const json& command, json* reply);
  Status Signal(const json& command);
  Status RunSteps(const json& command, json* reply);
  Status Events(json* reply);
  Status Fill(const json& command);
  Status Read(const json& command, json* reply);
  Status Differs(const json& command, json* reply);
  Status Capture(const json& command);
  Status Replay(const json& command);
  Status LaunchThreads(const json& command);
  Status Pause(const json& command);
  void Resume();
  Status LaunchChecked(const json& command, json* reply);
  Status Fork(json* reply);
  Status ForkAndConnect(const json& command, json* reply);
  std::vector<Status> CallEverything(StreamRef stream);
  Status CudaTrouble(const std::string& name, const json& command);
  Status CudaMemory(const std::string& name, const json& command, json* reply);
  Status CudaChunks(const std::string& name, const json& command, json* reply);

  Result<std::shared_ptr<Group>> FindGroup(const json& command) const;
  Result<std::shared_ptr<Plan>> FindPlan(const json& command) const;
  Result<std::shared_ptr<Memory>> FindMemory(const std::string& name) const;
  Result<std::vector<Binding>> Bindings(const json& command) const;
  // The device of "gpu", or of the group that was joined first.
  Result<RankDevice*> Device(const std::string& gpu);
  Result<RankStream*> Stream(const json& command);
  // Elements [offset, offset + count) of the command, checked, as bytes of the host: copied from the device
  // if `read`.
  struct Elements {
    RankMirror* mirror = nullptr;
    std::string gpu;
    DType dtype = DType::kF32;
    size_t offset = 0, count = 0;
    std::byte* data() const { return mirror->data() + offset; }
    size_t bytes() const { return count * DTypeBytes(dtype); }
  };
  Result<Elements> FindElements(const json& command, bool read);
  // Makes the mirror's bytes those of the device, or the other way round, at once.
  Status Copy(const Elements& elements, bool to_device);

  ConnectOptions options_;  // of the last connect
  std::shared_ptr<Client> client_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
  std::map<std::string, std::shared_ptr<Plan>> plans_;
  // A name given again replaces all of it: a mirror stands for one memory only, which must outlive it.
  struct NamedMemory {
    std::shared_ptr<Memory> memory;
    std::string gpu;  // where it lies, if not at home
    std::unique_ptr<RankMirror> mirror;
  };
  void Name(const json& command, std::shared_ptr<Memory> memory, std::string gpu = "");
  std::map<std::string, NamedMemory> memories_;
  std::map<std::string, uint64_t> tensors_;
  std::string home_gpu_;
  std::map<std::string, std::shared_ptr<RankDevice>> devices_;  // by GPU
  std::map<std::string, std::unique_ptr<RankStream>> streams_;
  std::map<std::string, std::unique_ptr<RankGraph>> graphs_;
  struct Gate;
  std::vector<std::shared_ptr<Gate>> gates_;     // closed
  std::map<std::string, uint64_t> allocations_;  // of "cuda_malloc" and "cuda_reserve"
  struct ChunkRange {
    uint64_t address = 0;
    size_t chunk = 0, chunks = 0;  // bytes of each, how many
  };
  std::map<std::string, ChunkRange> ranges_;  // of "cuda_reserve", for the process's life
};

}  // namespace tandem::driver
