#include "tests/conformance/rank.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/conformance/choice_rule.h"
#include "tests/conformance/reference_norm.h"

namespace tandem::conformance {
namespace {

using nlohmann::json;

std::string HexOf(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// The first byte at which two arenas differ; their sizes are equal.
std::string FirstDifference(const std::vector<std::byte>& before, const std::byte* after) {
  size_t at = 0;
  while (before[at] == after[at]) ++at;
  return "byte " + std::to_string(at);
}

// Turns a byte of each output.
void Spoil(std::vector<std::vector<std::byte>>* outputs) {
  for (std::vector<std::byte>& output : *outputs) {
    if (!output.empty()) output[0] ^= std::byte{0x7f};
  }
}

}  // namespace

Status Rank::Start() {
  ConnectOptions connect;
  connect.runtime_dir = options_.runtime_dir;
  connect.name = "conformance rank " + std::to_string(options_.rank);
  connect.deadline = Milliseconds(30000);
  TANDEM_ASSIGN_OR_RETURN(client_, Client::Connect(connect));
  JoinOptions join;
  join.job_key = options_.job_key;
  join.name = "conformance";
  join.world_size = options_.world;
  join.rank = options_.rank;
  const std::vector<GpuDescription>& gpus = client_->gpus();
  const auto gpu = std::find_if(gpus.begin(), gpus.end(),
                                [this](const GpuDescription& one) { return one.index == options_.gpu; });
  if (gpu == gpus.end()) return FailedPrecondition("the daemon has no GPU " + std::to_string(options_.gpu));
  join.gpu_uuid = gpu->uuid;
  join.deadline = options_.deadline;
  join.launch_deadline = options_.deadline / 2;
  if (!options_.placement.empty()) join.options["placement"] = options_.placement;
  TANDEM_ASSIGN_OR_RETURN(group_, client_->JoinGroup(join));
  TANDEM_ASSIGN_OR_RETURN(device_, RankDevice::Create(client_->backend(), group_->gpu_uuid()));
  TANDEM_ASSIGN_OR_RETURN(own_.memory, client_->AllocateRegistered(options_.own_bytes, group_->gpu_uuid()));
  TANDEM_ASSIGN_OR_RETURN(symmetric_.memory,
                          group_->Allocate({static_cast<int64_t>(options_.symmetric_bytes)}, DType::kU8));
  TANDEM_ASSIGN_OR_RETURN(own_.mirror, device_->MakeMirror(*own_.memory));
  TANDEM_ASSIGN_OR_RETURN(symmetric_.mirror, device_->MakeMirror(*symmetric_.memory));
  TANDEM_ASSIGN_OR_RETURN(stream_, device_->MakeStream());
  return Status::Ok();
}

Status Rank::End() {
  TANDEM_RETURN_IF_ERROR(stream_->Synchronize(options_.deadline));
  stream_.reset();
  own_ = {};
  symmetric_ = {};
  TANDEM_RETURN_IF_ERROR(group_->Leave());
  return client_->Detach();
}

json Rank::Run(const Case& test, size_t index, bool spoil) {
  json report = {{"status", "ok"}};
  Status status = RunPlan(test, index, spoil, &report);
  if (!status.ok()) {
    report["status"] = "failed";
    report["code"] = CodeName(status.code());
    report["message"] = status.ToString();
    // A wrong result leaves the group whole. After a call that failed the ranks may be at odds
    // over counts, or the group broken, the daemon gone: no further case.
    report["fatal"] = !report.value("judged", false);
  }
  return report;
}

bool Rank::OnOffer(Op op, Algorithm algorithm) const {
  if (algorithm == Algorithm::kAuto) return true;
  for (const Group::Offer& offer : group_->offers()) {
    if (offer.op == op && offer.algorithm == algorithm) return offer.available;
  }
  return false;
}

Status Rank::JudgeRefusal(const Case& test, const Status& refusal, json* report) const {
  const OpRequest& request = test.requests[static_cast<size_t>(options_.rank)];
  const bool refused =
      refusal.code() == Code::kFailedPrecondition &&
      (refusal.detail().reason == "ALGORITHM_REFUSED" || refusal.detail().reason == "UNFUSED_REFUSED");
  const bool needs_engine = options_.in_client() && refusal.code() == Code::kFailedPrecondition &&
                            refusal.detail().reason == "NOT_ONE_KERNEL";
  if (!refused && !needs_engine) return refusal.WithContext("prepare");
  (*report)["judged"] = true;
  if (needs_engine) return Status::Ok();
  if (!test.refusal.empty() || !OnOffer(request.op, request.algorithm)) return Status::Ok();
  // An algorithm for some shapes reports a refusal only when it meets another shape.
  const bool choosy = request.algorithm == Algorithm::kFused || request.algorithm == Algorithm::kLowLatency;
  if (choosy && !test.must_run) return Status::Ok();
  return refusal.WithContext("on offer, and refused");
}

Status Rank::JudgeChoice(const OpRequest& request, const PlanInfo& info) const {
  const std::string& topology = group_->topology_class();
  const bool by_size = topology == "nvswitch" || topology == "full_mesh";
  // Clients take what they can run.
  if (options_.in_client()) return Status::Ok();
  // A world of one copies; what an operator has measured goes before all bounds.
  if (options_.world == 1 || !by_size || info.reason.starts_with("measured")) return Status::Ok();
  const bool cuda = client_->backend() == "cuda";
  const plan::Bounds bounds = plan::BoundsOf(
      request.op, options_.world,
      topology == "nvswitch" ? TopologyClass::kNvSwitch : TopologyClass::kFullMesh, cuda, false);
  TANDEM_ASSIGN_OR_RETURN(int64_t bytes, SpanBytes(request.operands[0].spec));
  const Algorithm expected = AllReduceChoice(bounds, static_cast<uint64_t>(bytes), [&](Algorithm algorithm) {
    return OnOffer(request.op, algorithm);
  });
  if (info.algorithm == expected) return Status::Ok();
  return Internal("chose " + std::string(AlgorithmName(info.algorithm)) + ", not " +
                  std::string(AlgorithmName(expected)) + ": " + info.reason);
}

Status Rank::JudgePlan(const Case& test, const OpRequest& request, const PlanInfo& info) const {
  // A family has more rows, for which a refusal may not hold.
  if (!test.refusal.empty() && !options_.families)
    return Internal("should have been refused: " + test.refusal);
  if (!OnOffer(request.op, request.algorithm)) return Internal("not on offer, and planned all the same");
  if (request.algorithm != Algorithm::kAuto && info.algorithm != request.algorithm) {
    return Internal("runs by " + std::string(AlgorithmName(info.algorithm)) + ", which nobody asked for");
  }
  return test.judge_choice ? JudgeChoice(request, info) : Status::Ok();
}

Status Rank::RunPlan(const Case& test, size_t index, bool spoil, json* report) {
  const auto rank = static_cast<size_t>(options_.rank);
  const OpRequest& request = test.requests[rank];
  const int number = prepared_++;
  const uint64_t seed = Mix(options_.seed, index);
  const auto refuse = [&](const Status& status) {
    (*report)["status"] = "refused";
    (*report)["message"] = status.message();
    return Status::Ok();
  };
  FamilyCase family{request, LaunchOptions::kBoundRows, 1};
  if (options_.families) {
    Result<FamilyCase> made = FamilyOf(test, options_.rank, seed);
    if (!made.ok()) return refuse(made.status().WithContext("no family"));
    family = *std::move(made);
  }
  Result<std::shared_ptr<Plan>> prepared =
      group_->Prepare("case" + std::to_string(number), family.request, options_.deadline);
  if (!prepared.ok()) {
    TANDEM_RETURN_IF_ERROR(JudgeRefusal(test, prepared.status(), report));
    return refuse(prepared.status());
  }
  Plan& plan = **prepared;
  const PlanInfo& info = plan.info();
  (*report)["algorithm"] = AlgorithmName(info.algorithm);
  (*report)["deterministic"] = info.deterministic;
  (*report)["judged"] = true;  // from here to the first launch
  TANDEM_RETURN_IF_ERROR(JudgePlan(test, request, info));

  // Peers write to symmetric outputs by TMA where a client runs the fused kernel (docs/client-placement.md).
  const bool by_tma = options_.in_client() && info.algorithm == Algorithm::kFused;
  TANDEM_ASSIGN_OR_RETURN(Layout layout, MakeLayout(test, options_.rank, by_tma ? 16 : 1));
  std::vector<Binding> bindings;
  for (const Place& place : layout.places) {
    bindings.push_back({place.symmetric ? symmetric_.memory.get() : own_.memory.get(), place.offset});
  }
  const AllInputs inputs = MakeInputs(test, seed);
  const Image image = MakeImage(test, layout, inputs, options_.rank);
  const Way direct = options_.in_client() ? Way::kCaptured : Way::kDirect;  // which has no stream
  const Way others[] = {Way::kStream, options_.captures ? Way::kCaptured : Way::kStream, direct,
                        Way::kStream};
  const Way ways[] = {Way::kStream, others[Mix(seed, rank) % 4]};
  std::vector<std::vector<std::byte>> first;
  Status verdict;
  (*report)["judged"] = false;
  for (size_t launch = 0; launch < std::size(ways); ++launch) {
    std::memcpy(own_.mirror->data(), image.own.data(), image.own.size());
    std::memcpy(symmetric_.mirror->data(), image.symmetric.data(), image.symmetric.size());
    TANDEM_RETURN_IF_ERROR(Launch(plan, layout, bindings, ways[launch], family.rows));
    // A rank with a wrong result launches again all the same: the others would wait for it until the
    // deadline.
    std::vector<std::vector<std::byte>> outputs(request.operands.size());
    Status collected = Collect(test, layout, image, &outputs);
    if (verdict.ok()) verdict = collected;
    if (launch == 0) {
      if (spoil) Spoil(&outputs);
      if (verdict.ok()) verdict = JudgeOutputs(test, inputs, info, outputs, report);
      first = std::move(outputs);
    } else if (verdict.ok() && info.deterministic && outputs != first) {
      verdict = Internal("the second run differs from the first");
    }
  }
  TANDEM_RETURN_IF_ERROR(plan.Release());
  (*report)["judged"] = true;
  return verdict;
}

Status Rank::JudgeOutputs(const Case& test, const AllInputs& inputs, const PlanInfo& info,
                          const std::vector<std::vector<std::byte>>& outputs, json* report) const {
  const OpRequest& request = test.requests[static_cast<size_t>(options_.rank)];
  for (int slot = 0; slot < static_cast<int>(outputs.size()); ++slot) {
    if (!IsOutput(request, slot, options_.rank)) continue;
    const Role role = request.operands[static_cast<size_t>(slot)].role;
    if (role == Role::kScaleOutput) continue;  // judged with what it is the scale of
    if (role == Role::kQuantizedOutput) {
      const std::string wrong =
          WrongQuantization(request, inputs[static_cast<size_t>(options_.rank)], outputs);
      if (wrong.empty()) continue;
      (*report)["first_wrong"] = "slot " + std::to_string(slot) + ": " + wrong;
      return Internal("slot " + std::to_string(slot) + ": " + wrong);
    }
    const std::vector<std::byte>& output = outputs[static_cast<size_t>(slot)];
    const Expected expected = ComputeExpected(test, inputs, options_.rank, slot);
    const std::string wrong = CompareOutput(test, options_.rank, slot, ExecutionOf(info), expected, output);
    if (!wrong.empty()) {
      (*report)["first_wrong"] = "slot " + std::to_string(slot) + ": " + wrong;
      return Internal("slot " + std::to_string(slot) + ": " + wrong);
    }
    if (IsReplicated(request, slot)) (*report)["hashes"][std::to_string(slot)] = HexOf(HashOf(output));
  }
  return Status::Ok();
}

Status Rank::Upload(const Layout& layout) {
  TANDEM_RETURN_IF_ERROR(own_.mirror->ToDevice(*stream_, 0, layout.own_bytes));
  return symmetric_.mirror->ToDevice(*stream_, 0, layout.symmetric_bytes);
}

Status Rank::Download(const Layout& layout) {
  TANDEM_RETURN_IF_ERROR(own_.mirror->ToHost(*stream_, 0, layout.own_bytes));
  return symmetric_.mirror->ToHost(*stream_, 0, layout.symmetric_bytes);
}

Status Rank::Launch(Plan& plan, const Layout& layout, const std::vector<Binding>& bindings, Way way,
                    int64_t rows) {
  std::unique_ptr<RankGraph> graph;
  if (way == Way::kCaptured) TANDEM_RETURN_IF_ERROR(stream_->BeginCapture());
  Status status = Upload(layout);
  if (way == Way::kDirect) {
    TANDEM_RETURN_IF_ERROR(status);
    TANDEM_RETURN_IF_ERROR(stream_->Synchronize(options_.deadline));
    TANDEM_ASSIGN_OR_RETURN(uint64_t launch, plan.LaunchWithoutStream(bindings));
    TANDEM_RETURN_IF_ERROR(plan.WaitLaunch(launch, options_.deadline).WithContext("direct launch"));
  } else if (status.ok()) {
    status = plan.Launch(stream_->ref(), bindings, {.rows = rows}).WithContext("launch");
  }
  if (status.ok()) status = Download(layout);
  if (way == Way::kCaptured) {
    Result<std::unique_ptr<RankGraph>> captured = stream_->EndCapture();
    TANDEM_RETURN_IF_ERROR(status);  // which has more detail than a bad capture
    TANDEM_ASSIGN_OR_RETURN(graph, std::move(captured));
    status = stream_->Replay(*graph);
  }
  TANDEM_RETURN_IF_ERROR(stream_->Synchronize(options_.deadline).WithContext("synchronise"));
  TANDEM_RETURN_IF_ERROR(status);
  return plan.Wait(options_.deadline).WithContext("wait");
}

Status Rank::Collect(const Case& test, const Layout& layout, Image image,
                     std::vector<std::vector<std::byte>>* outputs) const {
  const OpRequest& request = test.requests[static_cast<size_t>(options_.rank)];
  for (size_t slot = 0; slot < request.operands.size(); ++slot) {
    if (!IsOutput(request, static_cast<int>(slot), options_.rank)) continue;
    const Place& place = layout.places[slot];
    const TensorSpec spec = SpecOf(request, static_cast<int>(slot));
    const RankMirror& mirror = place.symmetric ? *symmetric_.mirror : *own_.mirror;
    (*outputs)[slot] = Gather(spec, mirror.data() + place.tensor());
    Scatter(spec, (*outputs)[slot], image.At(place));
  }
  for (auto [name, before, arena] :
       {std::tuple{"own", &image.own, &own_}, {"symmetric", &image.symmetric, &symmetric_}}) {
    if (before->empty() || std::memcmp(before->data(), arena->mirror->data(), before->size()) == 0) continue;
    std::string places;
    for (const Place& place : layout.places)
      places += " " + std::string(place.symmetric ? "s" : "o") + std::to_string(place.offset);
    return Internal(
        "memory outside the outputs has changed: " + FirstDifference(*before, arena->mirror->data()) +
        " of the " + name + " arena; slots at" + places);
  }
  return Status::Ok();
}

}  // namespace tandem::conformance
