// File: commands.h
//
// tandem-test-client's commands: each is one call of the client library, asked for by a JSON line and answered by one.
// Objects (groups, plans, memories, streams) live under names that the script gives them.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tandem/client.h"
#include "tandem/host_stream.h"

namespace tandem::driver {

using nlohmann::json;

class Session {
 public:
  // Executes `command["cmd"]`; the reply's fields beside "ok" go to `reply`.
  Status Execute(const json& command, json* reply);

 private:
  Status Connect(const json& command, json* reply);
  Status Join(const json& command, json* reply);
  Status Allocate(const json& command, json* reply);
  Status Empty(const json& command, json* reply);
  Status Rendezvous(const json& command, json* reply);
  Status Register(const json& command, json* reply);
  Status RegisterForeign(const json& command);
  Status Prepare(const json& command, json* reply);
  Status Launch(const json& command, json* reply);
  Status LaunchDirect(const json& command, json* reply);
  Status Signal(const json& command);
  Status Events(json* reply);
  Status Fill(const json& command);
  Status Read(const json& command, json* reply);
  Status Capture(const json& command);
  Status Replay(const json& command);
  Status LaunchThreads(const json& command);
  Status Fork(json* reply);

  Result<std::shared_ptr<Group>> FindGroup(const json& command) const;
  Result<std::shared_ptr<Plan>> FindPlan(const json& command) const;
  Result<std::shared_ptr<Memory>> FindMemory(const std::string& name) const;
  Result<std::vector<Binding>> Bindings(const json& command) const;
  Result<HostStream*> Stream(const json& command);

  std::shared_ptr<Client> client_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
  std::map<std::string, std::shared_ptr<Plan>> plans_;
  std::map<std::string, std::shared_ptr<Memory>> memories_;
  std::map<std::string, uint64_t> tensors_;
  std::map<std::string, std::unique_ptr<HostStream>> streams_;
  std::map<std::string, HostGraphExec> graphs_;
};

// {"op":"all_reduce","operands":[{"role":"input","dtype":"f32","shape":[8]}…], …} to a request.
Result<OpRequest> ParseRequest(const json& object);

}  // namespace tandem::driver
