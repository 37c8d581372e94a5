// File: options.h
//
// The options of tandem-conformance.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::conformance {

struct Options {
  std::vector<int> worlds = {2};
  std::string filter;  // regular expression over names; empty: all
  uint64_t seed = 1;
  int skip = 0;           // cases of the seed's order that are left out at its beginning
  int sample = 0;         // run so many cases, drawn by the seed; 0: all
  bool heavy = true;      // cases of over a megabyte too
  double time_limit = 0;  // seconds in which cases are run, of all worlds together; 0: none
  int max_failures = 20;  // then the world ends
  // A case of each "operation/algorithm" here must have run, so that a run that was refused everything fails.
  std::vector<std::string> must_run;
  int deadline = 30;                 // seconds for each step of a case; a launch's is half of that
  bool captures = true;              // some launches in graphs
  std::string placement = "engine";  // the groups' option: auto, engine, client
  bool in_client() const { return placement == "client"; }
  bool families = false;                    // launches of families, each of the case's own rows
  int stress = 0;                           // launches of the stress instead of cases
  int renew_every = 0;                      // waits of the stress for each launch that fails; 0: none does
  std::string runtime_dir;                  // of a running daemon; empty: one is started and ended
  int first_gpu = 0;                        // the index of rank 0's GPU; other ranks have those behind it
  std::string bin_dir;                      // where tandemd is; empty: beside this program
  std::string backend = "host";             // of the daemon that is started
  std::vector<std::string> daemon_options;  // more of its flags
  std::string daemon_log;  // file for the log of the daemon that is started; empty: dropped with its folder
  std::string json;        // file for the summary; empty: none
  // Faults to plant, as "NUMBER:HOW". The last rank has the fault in the case of that number. "wrong" changes
  // a byte of the rank's output, "exit" ends the rank's process, "hang" stops its answers.
  std::vector<std::string> plant;
  bool list = false;
  bool quiet = false;  // print what fails and the summary only
  // Workers only.
  bool worker = false;
  int rank = -1;
  std::string job_key;
  uint64_t own_bytes = 0, symmetric_bytes = 0;
};

}  // namespace tandem::conformance
