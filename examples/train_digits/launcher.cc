#include "examples/train_digits/launcher.h"

#include <poll.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "examples/train_digits/rank_process.h"
#include "examples/train_digits/reference.h"
#include "examples/train_digits/report.h"
#include "examples/train_digits/worker.h"

namespace tandem::digits {
namespace {

using nlohmann::json;

constexpr double kRelative = 1e-4, kAbsolute = 1e-5;  // losses against the reference
// On the test part: not below the training in one process by more than this, and from kTrainedEpochs on at
// least kAccuracy.
constexpr double kAccuracyDifference = 0.01, kAccuracy = 0.96;
const int kTrainedEpochs = Options{}.epochs;
constexpr int kDetectionMs = 1000;
constexpr int kSilenceMs = 120000;  // no line from any rank for so long: something hangs

bool Agree(double loss, double reference) {
  return std::fabs(loss - reference) <= std::max(kAbsolute, kRelative * std::fabs(reference));
}

double RelativeNorm(const std::vector<float>& values, const float* reference, size_t count) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < count; ++i) {
    difference += std::pow(static_cast<double>(values[i]) - reference[i], 2);
    norm += std::pow(static_cast<double>(reference[i]), 2);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

class Launcher {
 public:
  Launcher(const Options& options, Dataset dataset)
      : options_(options),
        dataset_(std::move(dataset)),
        steps_per_epoch_((static_cast<int>(dataset_.train.size()) + options.shape.batch - 1) /
                         options.shape.batch),
        ranks_(static_cast<size_t>(options.world_size)),
        epoch_of_(ranks_.size(), 0) {}

  Status Run() {
    std::printf("Reference: %d epochs in one process … ", options_.epochs);
    std::fflush(stdout);
    reference_ = TrainReference(dataset_, options_.shape, options_.seed, options_.epochs);
    std::printf("loss %.6f, accuracy %.2f %%\n", reference_.loss.back(), 100 * reference_.accuracy);
    for (int rank = 0; rank < options_.world_size; ++rank) TANDEM_RETURN_IF_ERROR(Start(rank, 0));
    TANDEM_RETURN_IF_ERROR(Follow());
    checks_.Expect(options_.kill_rank < 0 || resumed_, options_.kill_rank < 0
                                                           ? "all ranks ended by themselves"
                                                           : "the group was broken and resumed");
    checks_.Summary();
    return checks_.all_passed() ? Status::Ok() : Internal("checks failed");
  }

 private:
  Status Start(int rank, int resume_epoch) {
    TANDEM_ASSIGN_OR_RETURN(ranks_[static_cast<size_t>(rank)],
                            RankProcess::Start(options_, rank, resume_epoch));
    return Status::Ok();
  }

  // Reads the ranks' lines until all have ended.
  Status Follow() {
    while (done_ < options_.world_size) {
      std::vector<pollfd> polls;
      std::vector<RankProcess*> owners;
      for (auto& rank : ranks_) {
        if (rank == nullptr) continue;
        polls.push_back({rank->lines().fd(), POLLIN, 0});
        owners.push_back(rank.get());
      }
      if (polls.empty()) return Internal("a rank ended early");
      if (::poll(polls.data(), polls.size(), kSilenceMs) == 0)
        return DeadlineExceeded("no rank has reported for 120 s");
      for (size_t i = 0; i < polls.size(); ++i) {
        if (polls[i].revents != 0) TANDEM_RETURN_IF_ERROR(Hear(owners[i]));
      }
    }
    return Status::Ok();
  }

  Status Hear(RankProcess* process) {
    int rank = process->rank();
    bool open = process->lines().Fill();
    while (std::optional<json> line = process->lines().Next()) {
      TANDEM_RETURN_IF_ERROR(Handle(process, *line));
      if (ranks_[static_cast<size_t>(rank)].get() != process) return Status::Ok();
    }
    if (open) return Status::Ok();
    int code = process->Reap();
    ranks_[static_cast<size_t>(rank)].reset();
    if (code == 0) {
      ++done_;
      return Status::Ok();
    }
    return Internal("rank " + std::to_string(rank) + " ended with " + std::to_string(code));
  }

  Status Handle(RankProcess* process, const json& line) {
    std::string event = line.value("event", "");
    int rank = process->rank();
    if (event == "joined" && rank == 0) OnJoined(line);
    if (event == "step") return OnStep(process, line);
    if (event == "gradients") OnGradients(rank, line);
    if (event == "epoch") OnEpoch(rank, line);
    if (event == "lost") return OnLost(rank, line);
    if (event == "accuracy" && rank == 0) OnAccuracy(line);
    if (event == "plans" && rank == 0) {
      std::printf("\nPlans (rank 0)\n");
      PrintPlans(line["plans"]);
      std::printf("\nEpoch 1 again with every algorithm (up / down / down_grad / up_grad / gradients)\n");
    }
    if (event == "variant") OnVariant(rank, line);
    if (event == "sweep") OnSweep(rank, line);
    if (event == "failed") {
      EndProgress();
      return Internal("rank " + std::to_string(rank) + ": " + line["status"].value("code", "") + ": " +
                      line["status"].value("message", ""));
    }
    return Status::Ok();
  }

  void OnJoined(const json& line) {
    if (line.value("resumed_after", 0) == 0) {
      PrintTopology(line, options_.world_size);
      std::printf("World size %d, backend %s, placement %s\n", options_.world_size,
                  line.value("backend", "?").c_str(), line.value("placement", "?").c_str());
      std::printf("Data: %zu images for training, %zu for the test (seed %llu); %d steps an epoch\n\n",
                  dataset_.train.size(), dataset_.test.size(), static_cast<unsigned long long>(options_.seed),
                  steps_per_epoch_);
    } else {
      std::printf("  joined again: incarnation %llu, resumed after epoch %d\n",
                  static_cast<unsigned long long>(line.value("incarnation", 0ULL)),
                  line.value("resumed_after", 0));
    }
  }

  Status OnStep(RankProcess* process, const json& line) {
    int epoch = line.value("epoch", 0), step = line.value("step", 0);
    if (process->rank() == 0) DrawProgress("epoch " + std::to_string(epoch), step + 1, steps_per_epoch_);
    if (process->rank() != options_.kill_rank || epoch != options_.at_epoch || step != steps_per_epoch_ / 2 ||
        killed_ns_ != 0) {
      return Status::Ok();
    }
    EndProgress();
    killed_ns_ = MonotonicNs();
    process->Kill();
    int code = process->Reap();
    ranks_[static_cast<size_t>(options_.kill_rank)].reset();
    std::printf("  rank %d killed (exit %d) in epoch %d, step %d\n", options_.kill_rank, code, epoch, step);
    return Status::Ok();
  }

  void OnGradients(int rank, const json& line) {
    if (gradients_seen_[rank]++ > 0) return;  // the same step again after a resume from the start
    auto cut = static_cast<size_t>(options_.world_size);
    ModelShape shape = options_.shape;
    int columns = shape.local_hidden();
    Matrix w1 = reference_.w1_gradient.middleCols(rank * columns, columns);
    Matrix w2 = reference_.w2_gradient.middleRows(rank * columns, columns);
    Matrix b1 = reference_.b1_gradient.middleCols(rank * columns, columns);
    worst_gradient_ = std::max(
        {worst_gradient_,
         RelativeNorm(line["replicated"].get<std::vector<float>>(), reference_.replicated_gradient.data(),
                      reference_.replicated_gradient.size()),
         RelativeNorm(line["w1"].get<std::vector<float>>(), w1.data(), static_cast<size_t>(w1.size())),
         RelativeNorm(line["b1"].get<std::vector<float>>(), b1.data(), static_cast<size_t>(b1.size())),
         RelativeNorm(line["w2"].get<std::vector<float>>(), w2.data(), static_cast<size_t>(w2.size()))});
    if (gradients_seen_.size() < cut) return;
    EndProgress();
    checks_.Expect(
        worst_gradient_ < 1e-5,
        "gradients of step 1 differ by " + Format("%.2e", worst_gradient_) + " of their norm (at most 1e-5)");
  }

  void OnEpoch(int rank, const json& line) {
    int epoch = line.value("epoch", 0);
    epoch_of_[static_cast<size_t>(rank)] = epoch;
    if (rank != 0) return;
    EndProgress();
    double loss = line["loss"].get<double>(), reference = reference_.loss[static_cast<size_t>(epoch - 1)];
    checks_.Expect(Agree(loss, reference), "epoch " + std::to_string(epoch) + ": loss " +
                                               Format("%.6f", loss) + ", in one process " +
                                               Format("%.6f", reference) + ", relative difference " +
                                               Format("%.1e", std::fabs(loss - reference) / reference));
  }

  Status OnLost(int rank, const json& line) {
    EndProgress();
    std::string message = line["status"].value("message", "");
    double ms = static_cast<double>(line["seen_ns"].get<int64_t>() - killed_ns_) / 1e6;
    bool named = message.find("rank " + std::to_string(options_.kill_rank)) != std::string::npos;
    checks_.Expect(named && ms <= kDetectionMs,
                   "rank " + std::to_string(rank) + " knows after " + Format("%.0f", ms) +
                       " ms: " + line["status"].value("code", "") + ": " + message);
    if (killed_ns_ == 0) return Internal("the group broke though no rank was killed");
    if (++lost_ < options_.world_size - 1) return Status::Ok();
    // Everybody has noticed: start the lost rank again and let all go on after the last epoch that all have
    // saved.
    int resume = options_.epochs;
    for (int r = 0; r < options_.world_size; ++r)
      resume = std::min(resume, epoch_of_[static_cast<size_t>(r)]);
    resumed_ = true;
    for (auto& process : ranks_) {
      if (process != nullptr) process->Tell({{"resume_epoch", resume}});
    }
    return Start(options_.kill_rank, resume);
  }

  void OnAccuracy(const json& line) {
    const double accuracy = line["accuracy"].get<double>();
    double least = reference_.accuracy - kAccuracyDifference;
    if (options_.epochs >= kTrainedEpochs) least = std::max(least, kAccuracy);
    checks_.Expect(accuracy >= least, "accuracy on the test part " + Format("%.2f", 100 * accuracy) +
                                          " % (at least " + Format("%.2f", 100 * least) +
                                          " %; in one process " + Format("%.2f", 100 * reference_.accuracy) +
                                          " %)");
  }

  void OnVariant(int rank, const json& line) {
    if (rank != 0) return;
    double loss = line["loss"].get<double>();
    checks_.Expect(Agree(loss, reference_.loss[0]), line.value("name", "") + ": loss " +
                                                        Format("%.6f", loss) + " in " +
                                                        Format("%.2f", line["seconds"].get<double>()) + " s");
  }

  void OnSweep(int rank, const json& line) {
    size_t wrong = 0;
    for (const json& row : line["rows"]) wrong += row["wrong"].get<size_t>();
    if (rank == 0) {
      std::printf("\nAll-reduces across the thresholds\n");
      PrintSweep(line["rows"]);
    }
    checks_.Expect(wrong == 0, "rank " + std::to_string(rank) + ": every sum of the sweep is exact");
  }

  const Options& options_;
  Dataset dataset_;
  int steps_per_epoch_;
  ReferenceResult reference_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<int> epoch_of_;  // the last epoch that each rank has saved
  std::map<int, int> gradients_seen_;
  double worst_gradient_ = 0;
  Checks checks_;
  int done_ = 0, lost_ = 0;
  int64_t killed_ns_ = 0;
  bool resumed_ = false;
};

}  // namespace

int RunLauncher(const Options& options) {
  Result<Dataset> dataset = LoadDigits(options.data, options.seed);
  if (!dataset.ok()) {
    std::fprintf(stderr, "tandem-train-digits: %s\n", dataset.status().ToString().c_str());
    return 2;
  }
  Options own = options;
  bool temporary = own.checkpoint_dir.empty();
  if (temporary) {
    std::string name = (std::filesystem::temp_directory_path() / "tandem-digits.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      std::fprintf(stderr, "tandem-train-digits: cannot make a folder for checkpoints\n");
      return 1;
    }
    own.checkpoint_dir = name;
  }
  Status status = Launcher(own, std::move(*dataset)).Run();
  std::error_code ignored;
  if (temporary) std::filesystem::remove_all(own.checkpoint_dir, ignored);
  if (status.ok()) return 0;
  std::fprintf(stderr, "tandem-train-digits: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace tandem::digits
