// File: rogue.h
//
// tandem-test-rogue's commands: a client process that speaks the protocol by hand, and wrongly on command. It
// has what any client has: the lease socket, the gRPC socket, and the descriptors that the daemon gives away.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "common/fd_socket.h"
#include "common/shared_memory.h"
#include "common/unique_fd.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::rogue {

using nlohmann::json;

class Rogue {
 public:
  // Executes `command["cmd"]`; the reply's fields beside "ok" go to `reply`.
  Status Execute(const json& command, json* reply);

 private:
  // The lease socket (rogue_lease.cc).
  Status Connect(const json& command);
  Status Attach(const json& command, json* reply);
  Status SendRawLease(const json& command);
  Status SendTransfer(const json& command);
  Status ReadLease(json* reply);
  Status HalfOpen(const json& command);
  Status HoldSessions(const json& command);
  // The next lease message; UNAVAILABLE once the daemon has closed it, DEADLINE_EXCEEDED after five seconds.
  Result<FdMessage> Receive(v1::LeaseMessage* message);
  // The descriptors of a transfer from the daemon.
  Result<std::vector<UniqueFd>> ReceiveTransfer(uint64_t transfer_id);

  // gRPC (rogue_calls.cc). Any method by its name, with a message in JSON or any bytes.
  Status Call(const json& command, json* reply);
  // The same call many times, none of which is waited for.
  Status PileUp(const json& command);
  // Calls from many threads, over and over, until the process ends (rogue_flood.cc).
  Status Flood(const json& command);
  Status FloodState(json* reply);
  Status CallBytes(const std::string& method, const std::string& request, const std::string& token,
                   std::string* reply);

  // Shared memory (rogue_memory.cc).
  Status MapChannel(const json& command);
  Status MapTensor(const json& command);
  Status Push(const json& command, json* reply);
  Status SetHeader(const json& command);
  Status SetRequest(const json& command);
  Status Scribble(const json& command, json* reply);
  Status Words(json* reply);

  std::string runtime_dir_;
  UniqueFd lease_;
  v1::AttachReply attached_;
  std::shared_ptr<grpc::Channel> channel_;
  std::vector<UniqueFd> half_open_;
  struct PendingCall;
  struct Flooding;
  std::vector<std::shared_ptr<PendingCall>> pending_;
  grpc::CompletionQueue pending_queue_;
  std::shared_ptr<Flooding> flooding_;
  std::map<uint64_t, std::vector<UniqueFd>> transfers_;
  uint32_t entries_ = 0;
  Mapping ring_, words_;
  std::vector<Mapping> tensor_;
  uint64_t sequence_ = 0;
  std::mt19937_64 random_{1};
};

// A new message of this type.
std::unique_ptr<google::protobuf::Message> NewMessage(const google::protobuf::Descriptor* type);

std::string ToHex(std::string_view bytes);
std::string FromHex(std::string_view text);

}  // namespace tandem::rogue
