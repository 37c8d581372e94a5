// tandem-conformance: every operation by every algorithm in every type and odd shape, through a real daemon,
// against a reference in double precision. Written once for all backends.

#include <signal.h>

#include <CLI/CLI.hpp>

#include "tests/conformance/launcher.h"
#include "tests/conformance/worker.h"

int main(int argc, char** argv) {
  using namespace tandem::conformance;
  ::signal(SIGPIPE, SIG_IGN);
  Options options;
  CLI::App app("Runs Tandem's conformance suite over rank processes", "tandem-conformance");
  app.add_option("--world", options.worlds, "Ranks; several worlds one after the other")
      ->delimiter(',')
      ->check(CLI::Range(1, 8));
  app.add_option("--filter", options.filter, "Run the cases whose names match this regular expression");
  app.add_option("--seed", options.seed, "Draws attributes, values and order");
  app.add_option("--skip", options.skip, "Leave out the first so many cases of the seed's order")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--sample", options.sample, "Run so many cases of each world, drawn by the seed (0: all)");
  app.add_flag("!--no-heavy", options.heavy, "Leave out tensors of more than a megabyte");
  app.add_option("--time-limit", options.time_limit,
                 "Seconds for cases, the start not counted; what is left then is not run");
  app.add_option("--max-failures", options.max_failures, "End a world after so many failures");
  app.add_option("--must-run", options.must_run,
                 "Fail unless a case of this operation/algorithm ran and was right")
      ->delimiter(',');
  app.add_option("--deadline", options.deadline, "Seconds for each step of a case")
      ->check(CLI::Range(1, 600));
  app.add_option("--plant", options.plant, "Plant a fault in a case: NUMBER:wrong, NUMBER:exit, NUMBER:hang")
      ->delimiter(',');
  app.add_flag("!--no-captures", options.captures, "Leave out launches in graphs");
  app.add_option("--placement", options.placement,
                 "Placement of the plans. client refuses plans that need an engine")
      ->check(CLI::IsMember({"auto", "engine", "client"}));
  app.add_flag("--families", options.families,
               "Launch families that have more rows than each case, by --placement client");
  app.add_option("--stress", options.stress, "Instead of cases: so many mixed launches with late ranks");
  app.add_option("--renew-every", options.renew_every,
                 "With --placement client: behind each so many waits of the stress a launch fails, and the "
                 "ranks renew their group");
  app.add_option("--runtime-dir", options.runtime_dir,
                 "Runtime directory of a running daemon. Empty: a daemon is started and ended");
  app.add_option("--first-gpu", options.first_gpu, "Index of rank 0's GPU; other ranks have those behind it")
      ->check(CLI::Range(0, 7));
  app.add_option("--bin-dir", options.bin_dir, "Directory of tandemd. Empty: the one of this program");
  app.add_option("--backend", options.backend, "Backend of the daemon that is started")
      ->check(CLI::IsMember({"host", "cuda"}));
  app.add_option("--daemon-option", options.daemon_options,
                 "One more argument of the daemon that is started");
  app.add_option("--daemon-log", options.daemon_log, "File for the log of the daemon that is started");
  app.add_option("--json", options.json, "File for the summary");
  app.add_flag("--list", options.list, "Print the cases' names and end");
  app.add_flag("--quiet", options.quiet, "Print what fails, and the summary");
  app.add_flag("--worker", options.worker)->group("");
  app.add_option("--rank", options.rank)->group("");
  app.add_option("--job-key", options.job_key)->group("");
  app.add_option("--own-bytes", options.own_bytes)->group("");
  app.add_option("--symmetric-bytes", options.symmetric_bytes)->group("");
  CLI11_PARSE(app, argc, argv);
  if (options.families) options.placement = "client";
  return options.worker ? RunWorker(options) : RunLauncher(options);
}
