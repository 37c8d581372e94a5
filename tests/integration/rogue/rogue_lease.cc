// A rogue's messages on the lease socket.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/protocol.h"
#include "tests/integration/rogue/rogue.h"

namespace tandem::rogue {
namespace {

constexpr int kWaitBudgetMs = 5000;

Status FromDetail(const v1::StatusDetail& detail) {
  return Status(static_cast<Code>(detail.code()), detail.message(),
                {.reason = detail.reason(),
                 .who = detail.who(),
                 .field = detail.field(),
                 .limit = detail.limit(),
                 .usage = detail.usage()});
}

}  // namespace

std::string ToHex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned char c : bytes) {
    text += kDigits[c >> 4];
    text += kDigits[c & 15];
  }
  return text;
}

std::string FromHex(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

Status Rogue::Execute(const json& command, json* reply) {
  const std::string cmd = command.value("cmd", "");
  if (cmd == "connect") return Connect(command);
  if (cmd == "attach") return Attach(command, reply);
  if (cmd == "raw_lease") return SendRawLease(command);
  if (cmd == "send_transfer") return SendTransfer(command);
  if (cmd == "read_lease") return ReadLease(reply);
  if (cmd == "half_open") return HalfOpen(command);
  if (cmd == "hold_sessions") return HoldSessions(command);
  if (cmd == "call") return Call(command, reply);
  if (cmd == "pile_up") return PileUp(command);
  if (cmd == "flood") return Flood(command);
  if (cmd == "flood_state") return FloodState(reply);
  if (cmd == "map_channel") return MapChannel(command);
  if (cmd == "map_tensor") return MapTensor(command);
  if (cmd == "push") return Push(command, reply);
  if (cmd == "set_header") return SetHeader(command);
  if (cmd == "set_request") return SetRequest(command);
  if (cmd == "scribble") return Scribble(command, reply);
  if (cmd == "words") return Words(reply);
  return Unimplemented("no command " + cmd);
}

Status Rogue::Connect(const json& command) {
  runtime_dir_ = command.value("runtime_dir", runtime_dir_);
  TANDEM_ASSIGN_OR_RETURN(lease_, ConnectSeqpacket(runtime_dir_ + "/lease.sock"));
  channel_ = grpc::CreateChannel("unix:" + runtime_dir_ + "/" + command.value("socket", "client.sock"),
                                 grpc::InsecureChannelCredentials());
  return Status::Ok();
}

Status Rogue::Attach(const json& command, json* reply) {
  TANDEM_RETURN_IF_ERROR(Connect(command));
  v1::LeaseMessage message;
  message.mutable_attach()->set_protocol_min(command.value("min", kProtocol));
  message.mutable_attach()->set_protocol_max(command.value("max", kProtocol));
  message.mutable_attach()->set_client_version("rogue");
  message.mutable_attach()->set_name(command.value("name", "rogue"));
  TANDEM_RETURN_IF_ERROR(SendMessage(lease_.get(), message.SerializeAsString()));
  v1::LeaseMessage answer;
  TANDEM_RETURN_IF_ERROR(Receive(&answer).status());
  if (!answer.has_attached()) return Internal("no answer to attach");
  attached_ = answer.attached();
  (*reply)["token"] = ToHex(attached_.token());
  (*reply)["session_id"] = attached_.session_id();
  (*reply)["gpus"] = json::array();
  for (const v1::Gpu& gpu : attached_.gpus()) (*reply)["gpus"].push_back(gpu.uuid());
  return Status::Ok();
}

// "hex" (or "bytes" random ones) with "fds" descriptors; "framed": behind a good header. Several packets by
// "count".
Status Rogue::SendRawLease(const json& command) {
  std::string body = FromHex(command.value("hex", ""));
  if (command.contains("bytes")) {
    body.resize(command["bytes"].get<size_t>());
    for (char& c : body) c = static_cast<char>(random_());
  }
  const std::vector<int> fds(command.value("fds", size_t{0}), lease_.get());
  for (int i = 0; i < command.value("count", 1); ++i) {
    if (command.value("framed", false)) {
      TANDEM_RETURN_IF_ERROR(SendMessage(lease_.get(), body, fds));
      continue;
    }
    iovec part{body.data(), body.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
    }
    if (::sendmsg(lease_.get(), &message, MSG_NOSIGNAL) < 0) return SystemError("sendmsg", errno);
  }
  return Status::Ok();
}

// `count` sealed memfds of `bytes` each as transfer `transfer_id`, in parts of `part`; `total` may lie.
Status Rogue::SendTransfer(const json& command) {
  const auto id = command.value("transfer_id", uint64_t{1});
  const auto count = command.value("count", uint32_t{1});
  const auto part = command.value("part", uint32_t{60});
  std::vector<UniqueFd> fds;
  for (uint32_t i = 0; i < count; ++i) {
    TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, CreateSealedMemfd("rogue", command.value("bytes", size_t{4096})));
    fds.push_back(std::move(fd));
  }
  for (uint32_t first = 0; first < count; first += part) {
    std::vector<int> raw;
    for (uint32_t i = first; i < std::min(count, first + part); ++i) raw.push_back(fds[i].get());
    v1::LeaseMessage message;
    message.mutable_transfer()->set_transfer_id(id);
    message.mutable_transfer()->set_index(command.value("index", first));
    message.mutable_transfer()->set_total(command.value("total", count));
    TANDEM_RETURN_IF_ERROR(SendMessage(lease_.get(), message.SerializeAsString(), raw));
  }
  return Status::Ok();
}

// The daemon's next word on the lease: a refusal becomes this command's failure.
Status Rogue::ReadLease(json* reply) {
  v1::LeaseMessage message;
  TANDEM_RETURN_IF_ERROR(Receive(&message).status());
  (*reply)["message"] = message.ShortDebugString();
  return Status::Ok();
}

Result<FdMessage> Rogue::Receive(v1::LeaseMessage* message) {
  pollfd ready{lease_.get(), POLLIN, 0};
  if (::poll(&ready, 1, kWaitBudgetMs) != 1) return DeadlineExceeded("the daemon says nothing on the lease");
  TANDEM_ASSIGN_OR_RETURN(FdMessage received, ReceiveMessage(lease_.get()));
  if (!message->ParseFromString(received.body)) return Internal("the daemon's lease message does not parse");
  if (message->has_refused()) return FromDetail(message->refused());
  return received;
}

Result<std::vector<UniqueFd>> Rogue::ReceiveTransfer(uint64_t transfer_id) {
  while (!transfers_.contains(transfer_id)) {
    v1::LeaseMessage message;
    TANDEM_ASSIGN_OR_RETURN(FdMessage received, Receive(&message));
    auto& fds = transfers_[message.transfer().transfer_id()];
    for (UniqueFd& fd : received.fds) fds.push_back(std::move(fd));
  }
  std::vector<UniqueFd> fds = std::move(transfers_[transfer_id]);
  transfers_.erase(transfer_id);
  return fds;
}

// Attaches "count" times and keeps the sessions; ends with the first refusal.
Status Rogue::HoldSessions(const json& command) {
  for (int i = 0; i < command.value("count", 0); ++i) {
    json reported;
    TANDEM_RETURN_IF_ERROR(Attach(command, &reported));
    half_open_.push_back(std::move(lease_));
  }
  return Status::Ok();
}

// Connections that are opened and left: "count" to the lease socket, or to gRPC's by "grpc". "close" ends
// them all.
Status Rogue::HalfOpen(const json& command) {
  if (command.value("close", false)) half_open_.clear();
  runtime_dir_ = command.value("runtime_dir", runtime_dir_);
  const bool grpc = command.value("grpc", false);
  const std::string path = runtime_dir_ + (grpc ? "/client.sock" : "/lease.sock");
  for (int i = 0; i < command.value("count", 0); ++i) {
    UniqueFd fd(::socket(AF_UNIX, (grpc ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      return SystemError("connect", errno);
    }
    half_open_.push_back(std::move(fd));
  }
  return Status::Ok();
}

}  // namespace tandem::rogue
