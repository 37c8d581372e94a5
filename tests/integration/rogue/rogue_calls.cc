// A rogue's calls over gRPC.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>

#include "tests/integration/rogue/rogue.h"

namespace tandem::rogue {
namespace {

constexpr char kTokenKey[] = "tandem-token";
constexpr char kStatusTrailer[] = "tandem-status-bin";
constexpr std::chrono::seconds kWaitBudget{30};

}  // namespace

std::unique_ptr<google::protobuf::Message> NewMessage(const google::protobuf::Descriptor* type) {
  return std::unique_ptr<google::protobuf::Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

struct Rogue::PendingCall {
  grpc::ClientContext context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> call;
  grpc::ByteBuffer answer;
  grpc::Status status;
};

// "count" JoinGroups on "gpu", each of another group ("name" and a number) whose other rank never comes.
Status Rogue::PileUp(const json& command) {
  if (!channel_) return FailedPrecondition("connect first");
  grpc::GenericStub stub(channel_);
  for (int i = 0; i < command.value("count", 1); ++i) {
    v1::JoinGroupRequest request;
    request.set_job_key("rogue-pile-up-key");
    request.set_name(command.value("name", "pile") + " " + std::to_string(i));
    request.set_world_size(2);
    request.set_gpu_uuid(command.value("gpu", ""));
    request.set_deadline_ms(600000);
    const grpc::Slice slice(request.SerializeAsString());
    const grpc::ByteBuffer body(&slice, 1);
    auto pending = std::make_shared<PendingCall>();
    pending->context.AddMetadata(kTokenKey, ToHex(attached_.token()));
    pending->call =
        stub.PrepareUnaryCall(&pending->context, "/tandem.v1.Tandem/JoinGroup", body, &pending_queue_);
    pending->call->StartCall();
    pending->call->Finish(&pending->answer, &pending->status, pending.get());
    pending_.push_back(std::move(pending));
  }
  return Status::Ok();
}

Status Rogue::CallBytes(const std::string& method, const std::string& request, const std::string& token,
                        std::string* reply) {
  if (!channel_) return FailedPrecondition("connect first");
  if (method.empty()) return InvalidArgument("the script names no method");
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  if (!token.empty()) context.AddMetadata(kTokenKey, token);
  context.set_deadline(std::chrono::system_clock::now() + kWaitBudget);
  const grpc::Slice slice(request);
  const grpc::ByteBuffer body(&slice, 1);
  grpc::ByteBuffer answer;
  grpc::CompletionQueue queue;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, method[0] == '/' ? method : "/tandem.v1.Tandem/" + method, body,
                                    &queue);
  call->StartCall();
  call->Finish(&answer, &status, this);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  if (status.ok()) {
    std::vector<grpc::Slice> slices;
    answer.Dump(&slices).ok();
    for (const grpc::Slice& part : slices)
      reply->append(reinterpret_cast<const char*>(part.begin()), part.size());
    return Status::Ok();
  }
  StatusDetail detail;
  const auto& trailers = context.GetServerTrailingMetadata();
  if (auto it = trailers.find(kStatusTrailer); it != trailers.end()) {
    v1::StatusDetail sent;
    sent.ParseFromString(std::string(it->second.data(), it->second.size()));
    detail = {.reason = sent.reason(),
              .who = sent.who(),
              .field = sent.field(),
              .limit = sent.limit(),
              .usage = sent.usage()};
  }
  return Status(static_cast<Code>(status.error_code()), status.error_message(), std::move(detail));
}

// "method" (of tandem.v1.Tandem, or with its whole path) with "request" (JSON) or "hex" (any bytes), under
// "token" (hexadecimal, "" for none; else the own one).
Status Rogue::Call(const json& command, json* reply) {
  const std::string name = command.value("method", "");
  const auto* service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("tandem.v1.Tandem");
  const auto* method = service->FindMethodByName(name);
  std::string body = FromHex(command.value("hex", ""));
  if (method != nullptr && command.contains("request")) {
    auto request = NewMessage(method->input_type());
    auto parsed = google::protobuf::util::JsonStringToMessage(command["request"].dump(), request.get());
    if (!parsed.ok()) return InvalidArgument("the script's request: " + std::string(parsed.message()));
    body = request->SerializeAsString();
  }
  std::string answer;
  TANDEM_RETURN_IF_ERROR(CallBytes(name, body, command.value("token", ToHex(attached_.token())), &answer));
  if (method != nullptr) {
    auto message = NewMessage(method->output_type());
    message->ParseFromString(answer);
    std::string text;
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    google::protobuf::util::MessageToJsonString(*message, &text, options).ok();
    (*reply)["reply"] = json::parse(text);
  } else {
    (*reply)["hex"] = ToHex(answer);
  }
  return Status::Ok();
}

}  // namespace tandem::rogue
