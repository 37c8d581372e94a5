// The tuning table for operators: reading, handing in what has been measured, forgetting.
#include <utility>
#include <vector>

#include "common/log.h"
#include "daemon/admin/admin_service.h"
#include "daemon/control/base/validate.h"
#include "daemon/planner/tuning/tuning_store.h"

namespace tandem::daemon {
namespace {

void Fill(const plan::TuningEntry& entry, admin::v1::TuningEntry* out) {
  out->set_id(plan::TuningId(entry));
  out->set_gpu(entry.key.gpu);
  out->set_topology_class(entry.key.topology_class);
  out->set_world_size(entry.key.world_size);
  out->set_op(static_cast<uint32_t>(entry.key.op));
  out->set_types(entry.key.types);
  out->set_scales(entry.key.scales);
  out->set_traits(entry.key.traits);
  for (int64_t extent : entry.shape) out->add_shape(extent);
  out->set_measured_at(entry.measured_at);
  out->set_version(entry.version);
  out->set_source(entry.source);
  for (const plan::TuningCandidate& candidate : entry.candidates) {
    admin::v1::TuningCandidate* to = out->add_candidates();
    to->set_algorithm(static_cast<uint32_t>(candidate.algorithm));
    to->set_steps(candidate.steps);
    to->set_lanes(candidate.lanes);
    to->set_samples(candidate.samples);
    to->set_median_us(candidate.median_us);
    to->set_p10_us(candidate.p10_us);
    to->set_p90_us(candidate.p90_us);
    to->set_refused(candidate.refused);
  }
}

plan::TuningCandidate CandidateOf(const admin::v1::TuningCandidate& from) {
  plan::TuningCandidate candidate;
  candidate.algorithm = static_cast<Algorithm>(from.algorithm());
  candidate.steps = from.steps();
  candidate.lanes = from.lanes();
  candidate.samples = from.samples();
  candidate.median_us = from.median_us();
  candidate.p10_us = from.p10_us();
  candidate.p90_us = from.p90_us();
  candidate.refused = from.refused();
  return candidate;
}

Status NoTable() { return FailedPrecondition("this daemon keeps no tuning table"); }

}  // namespace

grpc::Status AdminService::ListTuning(grpc::ServerContext*, const admin::v1::ListTuningRequest* request,
                                      admin::v1::ListTuningReply* reply) {
  if (sources_.tuning == nullptr) return ToGrpc(NoTable());
  const auto table = sources_.tuning->Snapshot();
  ReplyBudget budget(reply_bytes_ / 2), for_wanted(reply_bytes_ / 2);
  for (const plan::TuningEntry* entry : table->Entries()) {
    if (!request->id().empty() && plan::TuningId(*entry) != request->id()) continue;
    admin::v1::TuningEntry out;
    Fill(*entry, &out);
    if (!AddWithin(budget, reply->mutable_entries(), std::move(out))) break;
  }
  if (!request->id().empty() && reply->entries().empty()) {
    return ToGrpc(NotFound("there is no tuning entry " + log::OneLine(request->id())));
  }
  for (const WantedTuning& wanted :
       request->id().empty() ? sources_.tuning->Wanted() : std::vector<WantedTuning>()) {
    admin::v1::WantedTuning to;
    Fill(wanted.entry, to.mutable_entry());
    *to.mutable_request() = OpRequestToProto(wanted.request);
    for (const std::string& uuid : wanted.gpu_uuids) to.add_gpu_uuids(uuid);
    to.set_plans(wanted.plans);
    if (!AddWithin(for_wanted, reply->mutable_wanted(), std::move(to))) break;
  }
  reply->set_truncated(budget.cut() || for_wanted.cut());
  for (const std::string& refused : sources_.tuning->refused()) reply->add_refused_files(refused);
  reply->set_state_file(sources_.tuning->state_file());
  return grpc::Status::OK;
}

grpc::Status AdminControlService::PutTuning(grpc::ServerContext* context,
                                            const admin::v1::PutTuningRequest* request,
                                            admin::v1::PutTuningReply* reply) {
  return Audited(context, "PutTuning", *request, [&] {
    if (static_cast<size_t>(request->candidates_size()) > plan::kMaxTuningCandidates) {
      return ToGrpc(
          InvalidArgument("more than " + std::to_string(plan::kMaxTuningCandidates) + " candidates"));
    }
    std::vector<plan::TuningCandidate> candidates;
    for (const admin::v1::TuningCandidate& from : request->candidates()) {
      if (from.algorithm() > 255) return ToGrpc(InvalidArgument("unknown algorithm"));
      candidates.push_back(CandidateOf(from));
    }
    auto entry = sources_.control->PutTuning(request->request(),
                                             {request->gpu_uuids().begin(), request->gpu_uuids().end()},
                                             std::move(candidates));
    if (!entry.ok()) return ToGrpc(entry.status());
    Fill(*entry, reply->mutable_entry());
    return grpc::Status::OK;
  });
}

grpc::Status AdminControlService::ForgetTuning(grpc::ServerContext* context,
                                               const admin::v1::ForgetTuningRequest* request,
                                               admin::v1::ForgetTuningReply* reply) {
  return Audited(context, "ForgetTuning", *request, [&] {
    if (sources_.tuning == nullptr) return ToGrpc(NoTable());
    if (request->id().empty() != request->all()) return ToGrpc(InvalidArgument("either an id or all"));
    Result<size_t> count =
        request->all() ? sources_.tuning->ForgetAll() : sources_.tuning->Forget(request->id());
    if (!count.ok()) return ToGrpc(count.status());
    reply->set_forgotten(static_cast<uint32_t>(*count));
    return grpc::Status::OK;
  });
}

}  // namespace tandem::daemon
