// tandem-train-digits: four processes train a tensor-parallel MLP on handwritten digits through Tandem, and
// check every step of the way against the same training in one process.

#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "client/ranks/job_key.h"
#include "client/ranks/worker_process.h"
#include "common/cli/arguments.h"
#include "examples/train_digits/launcher.h"
#include "examples/train_digits/worker.h"

namespace {

// digits.csv in an installed tree (share/tandem beside bin/), else in the sources.
std::string FindData() {
  std::error_code error;
  std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  std::filesystem::path installed = program.parent_path().parent_path() / "share/tandem/digits.csv";
  return std::filesystem::exists(installed, error) ? installed.string() : TANDEM_DIGITS_CSV;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tandem::digits;
  ::signal(SIGPIPE, SIG_IGN);
  Options options;
  CLI::App app("Trains a tensor-parallel MLP on the UCI handwritten digits through Tandem.",
               "tandem-train-digits");
  app.option_defaults()->always_capture_default();
  app.add_option("--runtime-dir", options.runtime_dir,
                 "Directory of the daemon's sockets. Empty: $TANDEM_RUNTIME_DIR, else /run/tandem");
  app.add_option("--backend", options.backend, "Refuse a daemon with another backend")
      ->check(CLI::IsMember({"host", "cuda"}));
  app.add_option("--world", options.world_size, "Ranks")->check(CLI::Range(1, 8));
  app.add_option("--epochs", options.epochs, "Passes over the training images")->check(CLI::Range(1, 1000));
  app.add_option("--seed", options.seed, "Seed of the split, of the first weights and of the order");
  app.add_option("--data", options.data, "File with the images. Empty: Tandem's own digits.csv");
  app.add_option("--checkpoints", options.checkpoint_dir,
                 "Directory of the checkpoints. Empty: a temporary one");
  auto* kill = app.add_option("--kill-rank", options.kill_rank,
                              "Kill this rank by SIGKILL in the middle of --at-epoch; -1: none");
  auto* at =
      app.add_option("--at-epoch", options.at_epoch, "Epoch of the kill, after which the job recovers");
  kill->needs(at);
  app.add_flag("--worker", options.worker)->group("");
  app.add_option("--rank", options.rank)->group("");
  app.add_option("--job-key", options.job_key)->group("");
  app.add_option("--resume-epoch", options.resume_epoch)->group("");
  std::vector<std::string> arguments = tandem::cli::Arguments(argc, argv);
  try {  // CLI11 reports by exceptions
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }

  options.shape.world_size = options.world_size;
  // A hidden layer that every world size divides: the next multiple above 256.
  options.shape.hidden =
      (options.shape.hidden + options.world_size - 1) / options.world_size * options.world_size;
  if (options.data.empty()) options.data = FindData();
  if (options.worker)
    return RunWorker(options, tandem::UniqueFd(tandem::kWorkerIn), tandem::UniqueFd(tandem::kWorkerOut));
  bool kills = options.kill_rank >= 0;
  if (kills && (options.kill_rank >= options.world_size || options.at_epoch < 1 ||
                options.at_epoch > options.epochs || options.world_size < 2)) {
    std::fprintf(
        stderr,
        "tandem-train-digits: --kill-rank must be a rank of at least two, --at-epoch one of the epochs\n");
    return 2;
  }
  const auto job_key = tandem::RandomJobKey();
  if (!job_key.ok()) {
    std::fprintf(stderr, "tandem-train-digits: %s\n", job_key.status().ToString().c_str());
    return 1;
  }
  options.job_key = *job_key;
  return RunLauncher(options);
}
