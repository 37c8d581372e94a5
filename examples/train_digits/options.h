// File: options.h
//
// The options of tandem-train-digits, the same in the launcher and in the workers.
#pragma once

#include <cstdint>
#include <string>

#include "examples/train_digits/model.h"

namespace tandem::digits {

struct Options {
  std::string runtime_dir;  // of the daemon; empty: the library's default
  std::string backend;      // that the daemon must have; empty: any
  std::string data;         // digits.csv; empty: beside the sources, or in share/tandem of an installed tree
  std::string checkpoint_dir;  // empty: a temporary folder
  int world_size = 4;
  int epochs = 12;
  uint64_t seed = 1;
  int kill_rank = -1;  // kill -9 this rank …
  int at_epoch = 0;    // … in the middle of this epoch
  ModelShape shape;
  // Workers only.
  bool worker = false;
  int rank = -1;
  std::string job_key;
  int resume_epoch = 0;  // the last epoch whose checkpoint all ranks have; 0: start afresh
};

}  // namespace tandem::digits
