// Floods: a rogue's threads make one call over and over, as fast as they are answered.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "tests/integration/rogue/rogue.h"

namespace tandem::rogue {
namespace {

using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

const MethodDescriptor* FindMethod(const std::string& name) {
  const auto* service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("tandem.v1.Tandem");
  return service->FindMethodByName(name);
}

// `text` with the number instead of each "{n}".
std::string Numbered(std::string text, uint64_t number) {
  for (size_t at; (at = text.find("{n}")) != std::string::npos;) text.replace(at, 3, std::to_string(number));
  return text;
}

// The id at `path` ("plan.plan_id") of a reply.
uint64_t IdAt(const Message& reply, const std::string& path) {
  const size_t dot = path.find('.');
  const auto* field = reply.GetDescriptor()->FindFieldByName(path.substr(0, dot));
  if (field == nullptr) return 0;
  if (dot == std::string::npos) return reply.GetReflection()->GetUInt64(reply, field);
  return IdAt(reply.GetReflection()->GetMessage(reply, field), path.substr(dot + 1));
}

}  // namespace

struct Rogue::Flooding {
  ~Flooding() {
    over.store(true);
    for (std::thread& thread : threads) thread.join();
  }
  void Note(const Status& status) {
    std::lock_guard lock(mutex);
    ++outcomes[status.ok()                      ? "OK"
               : status.detail().reason.empty() ? std::string(CodeName(status.code()))
                                                : status.detail().reason];
  }
  std::atomic<bool> over{false};
  std::atomic<uint64_t> next{0};
  std::mutex mutex;
  std::map<std::string, uint64_t> outcomes;  // by reason; under mutex
  std::vector<std::thread> threads;
};

// "threads" threads call "method" with "request" (JSON, in which "{n}" is another number each time) under
// "token", else the own one. With "undo": that method follows with the id that the reply has at
// "id_field" ("group_id", "plan.plan_id"). The method "transfer" sends "count" descriptors on the lease
// instead.
Status Rogue::Flood(const json& command) {
  if (!channel_) return FailedPrecondition("connect first");
  const std::string name = command.value("method", "");
  const bool transfers = name == "transfer";
  const MethodDescriptor* method = FindMethod(name);
  const MethodDescriptor* undo = FindMethod(command.value("undo", ""));
  if (method == nullptr && !transfers) return InvalidArgument("no method " + name);
  if (!flooding_) flooding_ = std::make_shared<Flooding>();
  Flooding& flood = *flooding_;
  const std::string text = command.value("request", json::object()).dump();
  const std::string token = command.value("token", ToHex(attached_.token()));
  const std::string id = command.value("id_field", "");
  const auto call = [this, &flood, method, undo, text, token, id] {
    auto request = NewMessage(method->input_type());
    if (!google::protobuf::util::JsonStringToMessage(Numbered(text, flood.next++), request.get()).ok())
      return false;
    std::string answer;
    const Status status = CallBytes(method->name(), request->SerializeAsString(), token, &answer);
    flood.Note(status);
    if (!status.ok() || undo == nullptr) return true;
    auto reply = NewMessage(method->output_type());
    reply->ParseFromString(answer);
    auto undoing = NewMessage(undo->input_type());
    const auto* field = undo->input_type()->FindFieldByName(id.substr(id.rfind('.') + 1));
    if (field == nullptr) return false;
    undoing->GetReflection()->SetUInt64(undoing.get(), field, IdAt(*reply, id));
    CallBytes(undo->name(), undoing->SerializeAsString(), token, &answer).ok();
    return true;
  };
  const auto send = [this, &flood, command] {
    json transfer = command;
    transfer["transfer_id"] = ++flood.next;
    const Status status = SendTransfer(transfer);
    flood.Note(status);
    return status.ok();
  };
  const int threads = transfers ? 1 : command.value("threads", 4);
  for (int i = 0; i < threads; ++i) {
    flood.threads.emplace_back([&flood, call, send, transfers] {
      while (!flood.over.load() && (transfers ? send() : call())) {
      }
    });
  }
  return Status::Ok();
}

// How many calls of the floods have ended, by "OK" or the refusal's reason.
Status Rogue::FloodState(json* reply) {
  if (!flooding_) return FailedPrecondition("flood first");
  std::lock_guard lock(flooding_->mutex);
  (*reply)["outcomes"] = flooding_->outcomes;
  return Status::Ok();
}

}  // namespace tandem::rogue
