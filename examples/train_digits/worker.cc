#include "examples/train_digits/worker.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "client/ranks/json_lines.h"
#include "examples/train_digits/parallel_model.h"
#include "examples/train_digits/sweep.h"

namespace tandem::digits {
namespace {

using nlohmann::json;

json StatusJson(const Status& status) {
  return {{"code", CodeName(status.code())},
          {"message", status.message()},
          {"who", status.detail().who},
          {"reason", status.detail().reason}};
}

json PlanJson(const TimedPlan& timed) {
  const PlanInfo& info = timed.plan->info();
  json refused = json::array();
  for (const PlanInfo::Refused& other : info.refused) {
    refused.push_back({{"algorithm", AlgorithmName(other.algorithm)},
                       {"reason", other.reason},
                       {"predicted_us", other.predicted_us}});
  }
  return {{"name", timed.name},
          {"op", OpName(info.op)},
          {"summary", info.summary},
          {"algorithm", AlgorithmName(info.algorithm)},
          {"fused", info.fused},
          {"steps", info.steps},
          {"lanes", info.lanes},
          {"reason", info.reason},
          {"refused", refused},
          {"wire", info.wire_type},
          {"order", info.reduction_order},
          {"bytes_moved", info.bytes_moved},
          {"predicted_us", info.predicted_us},
          {"workspace", info.workspace_bytes},
          {"group_workspace", info.group_workspace_bytes},
          {"unshared_workspace", info.unshared_workspace_bytes},
          {"placement", info.placement},
          {"microseconds", timed.microseconds}};
}

class Worker {
 public:
  Worker(const Options& options, UniqueFd in, UniqueFd out)
      : options_(options), reader_(std::move(in)), out_(std::move(out)) {}

  Status Run() {
    TANDEM_ASSIGN_OR_RETURN(dataset_, LoadDigits(options_.data, options_.seed));
    ConnectOptions connect;
    connect.runtime_dir = options_.runtime_dir;
    connect.name = "train-digits rank " + std::to_string(options_.rank);
    TANDEM_ASSIGN_OR_RETURN(client_, Client::Connect(connect));
    if (!options_.backend.empty() && options_.backend != client_->backend()) {
      return FailedPrecondition("the daemon's backend is " + client_->backend() + ", not " +
                                options_.backend);
    }
    int epoch = options_.resume_epoch;
    for (;;) {
      Status status = Join(epoch);
      if (status.ok()) status = Train(&epoch);
      if (status.ok()) break;
      bool peer_lost = status.code() == Code::kUnavailable || status.code() == Code::kAborted;
      if (!peer_lost || options_.kill_rank < 0) return status;
      TANDEM_RETURN_IF_ERROR(Recover(status, &epoch));
    }
    TANDEM_RETURN_IF_ERROR(Evaluate());
    ReportPlans();
    TANDEM_RETURN_IF_ERROR(RunVariants());
    TANDEM_RETURN_IF_ERROR(Sweep());
    model_.reset();
    TANDEM_RETURN_IF_ERROR(group_->Leave());
    return client_->Detach();
  }

  void Send(json object) {
    object["rank"] = options_.rank;
    if (!WriteLine(out_.get(), object)) ::_exit(1);  // the launcher has gone
  }

 private:
  std::string Checkpoint(int epoch) const {
    return options_.checkpoint_dir + "/rank" + std::to_string(options_.rank) + ".epoch" +
           std::to_string(epoch);
  }

  Status Join(int resume_epoch) {
    JoinOptions join;
    join.job_key = options_.job_key;
    join.name = "digits";
    join.world_size = options_.world_size;
    join.rank = options_.rank;
    TANDEM_ASSIGN_OR_RETURN(group_, client_->JoinGroup(join));
    TANDEM_ASSIGN_OR_RETURN(device_, RankDevice::Create(client_->backend(), group_->gpu_uuid()));
    TANDEM_ASSIGN_OR_RETURN(model_, ParallelModel::Create(client_, group_, device_, options_.shape,
                                                          options_.seed, AlgorithmChoice{}, "main/"));
    if (resume_epoch > 0) TANDEM_RETURN_IF_ERROR(model_->Load(Checkpoint(resume_epoch)));
    Send({{"event", "joined"},
          {"topology_class", group_->topology_class()},
          {"links", group_->link_counts()},
          {"backend", client_->backend()},
          {"incarnation", group_->incarnation()},
          {"placement", model_->plans().front().plan->info().placement},
          {"resumed_after", resume_epoch}});
    return Status::Ok();
  }

  // Trains one epoch of `model`; its mean loss.
  Result<double> TrainEpoch(ParallelModel* model, int epoch, bool report_steps) {
    std::vector<int> order = EpochOrder(static_cast<int>(dataset_.train.size()), options_.seed, epoch);
    double loss = 0;
    int step = 0;
    for (int first = 0; first < static_cast<int>(order.size()); first += options_.shape.batch, ++step) {
      Batch batch = MakeBatch(dataset_.train, order, first, options_.shape, options_.rank);
      TANDEM_ASSIGN_OR_RETURN(StepResult result, model->TrainStep(batch));
      loss += result.loss_sum;
      if (!report_steps) continue;
      if (epoch == 1 && step == 0) SendGradients(*model);
      Send({{"event", "step"}, {"epoch", epoch}, {"step", step}});
    }
    return loss / static_cast<double>(order.size());
  }

  Status Train(int* epoch) {
    while (*epoch < options_.epochs) {
      TANDEM_ASSIGN_OR_RETURN(double loss, TrainEpoch(model_.get(), *epoch + 1, true));
      ++*epoch;
      TANDEM_RETURN_IF_ERROR(model_->Save(Checkpoint(*epoch)));
      Send({{"event", "epoch"}, {"epoch", *epoch}, {"loss", loss}});
    }
    return Status::Ok();
  }

  void SendGradients(const ParallelModel& model) {
    const float* replicated = model.replicated_gradient();
    Send({{"event", "gradients"},
          {"replicated", std::vector<float>(replicated, replicated + options_.shape.replicated())},
          {"w1", model.w1_gradient()},
          {"b1", model.b1_gradient()},
          {"w2", model.w2_gradient()}});
  }

  // A rank was lost: reports that, drops everything of the broken group, and waits for the launcher's line.
  Status Recover(const Status& status, int* epoch) {
    Send({{"event", "lost"}, {"seen_ns", MonotonicNs()}, {"status", StatusJson(status)}});
    model_.reset();
    group_.reset();
    std::optional<json> line;
    while (!(line = reader_.Next())) {
      if (!reader_.Fill()) return Unavailable("the launcher has gone");
    }
    *epoch = line->value("resume_epoch", 0);
    return Status::Ok();
  }

  Status Evaluate() {
    std::vector<int> order = EpochOrder(static_cast<int>(dataset_.test.size()), options_.seed, 0);
    int correct = 0;
    for (int first = 0; first < static_cast<int>(order.size()); first += options_.shape.batch) {
      Batch batch = MakeBatch(dataset_.test, order, first, options_.shape, options_.rank);
      TANDEM_ASSIGN_OR_RETURN(StepResult result, model_->EvaluateStep(batch));
      correct += result.correct;
    }
    Send({{"event", "accuracy"},
          {"accuracy", static_cast<double>(correct) / static_cast<double>(dataset_.test.size())}});
    return Status::Ok();
  }

  void ReportPlans() {
    json plans = json::array();
    for (const TimedPlan& timed : model_->plans()) plans.push_back(PlanJson(timed));
    Send({{"event", "plans"}, {"plans", plans}});
  }

  // Epoch 1 again from the same start with every algorithm of the fused operations and of the all-reduce.
  Status RunVariants() {
    std::vector<AlgorithmChoice> variants;
    const auto offered = [this](Algorithm algorithm) {
      return std::any_of(group_->offers().begin(), group_->offers().end(), [&](const Group::Offer& offer) {
        return offer.op == Op::kAllReduce && offer.algorithm == algorithm && offer.available;
      });
    };
    // Ranks that share a GPU have no NCCL.
    Algorithm reductions[] = {Algorithm::kOneShot, Algorithm::kTwoShot,
                              offered(Algorithm::kNccl) ? Algorithm::kNccl : Algorithm::kCopyEngine};
    int next = 0;
    for (Algorithm fused : {Algorithm::kUnfused, Algorithm::kPipeline, Algorithm::kRing}) {
      variants.push_back({fused, fused, fused, fused, reductions[next++]});
    }
    if (group_->topology_class() == "hybrid_cube_mesh") {
      variants.push_back({Algorithm::kPipeline, Algorithm::kRing, Algorithm::kRing, Algorithm::kPipeline,
                          Algorithm::kHybridCubeMesh});
    }
    int index = 0;
    for (const AlgorithmChoice& choice : variants) {
      std::string prefix = "variant" + std::to_string(index++) + "/";
      TANDEM_ASSIGN_OR_RETURN(
          std::unique_ptr<ParallelModel> model,
          ParallelModel::Create(client_, group_, device_, options_.shape, options_.seed, choice, prefix));
      auto start = std::chrono::steady_clock::now();
      TANDEM_ASSIGN_OR_RETURN(double loss, TrainEpoch(model.get(), 1, false));
      double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      Send({{"event", "variant"}, {"name", choice.Name()}, {"loss", loss}, {"seconds", seconds}});
      TANDEM_RETURN_IF_ERROR(model->Release());
    }
    return Status::Ok();
  }

  Status Sweep() {
    json rows = json::array();
    TANDEM_ASSIGN_OR_RETURN(std::vector<SweepRow> sweep, SweepAllReduce(client_, group_, device_));
    for (const SweepRow& row : sweep) {
      rows.push_back({{"bytes", row.bytes},
                      {"algorithm", AlgorithmName(row.algorithm)},
                      {"reason", row.reason},
                      {"median_us", row.median_us},
                      {"wrong", row.wrong}});
    }
    Send({{"event", "sweep"}, {"rows", rows}});
    return Status::Ok();
  }

  const Options& options_;
  LineReader reader_;
  UniqueFd out_;
  Dataset dataset_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<RankDevice> device_;
  std::unique_ptr<ParallelModel> model_;
};

}  // namespace

int64_t MonotonicNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int RunWorker(const Options& options, UniqueFd in, UniqueFd out) {
  Worker worker(options, std::move(in), std::move(out));
  Status status = worker.Run();
  if (!status.ok()) {
    worker.Send({{"event", "failed"}, {"status", StatusJson(status)}});
    return 1;
  }
  worker.Send({{"event", "done"}});
  return 0;
}

}  // namespace tandem::digits
