// File: mps_endpoint.h
//
// `MpsEndpoint`: which MPS control daemon the CUDA driver of a process would meet, and whether one answers
// there. The driver decides by CUDA_MPS_PIPE_DIRECTORY alone; two processes share a server exactly if they
// name the same directory and a control daemon answers in it. Directories are compared by device and inode: a
// container may mount one elsewhere.
//
// Needs neither CUDA nor MPS. Safe from any thread.
#pragma once

#include <cstdint>
#include <string>

namespace tandem {

struct MpsEndpoint {
  std::string directory = {};  // as the process names it
  bool answers = false;        // a control daemon listens there
  uint64_t device = 0;         // of the directory; 0 if there is none
  uint64_t inode = 0;

  bool operator==(const MpsEndpoint&) const = default;
};

// The directory that the CUDA driver of this process uses: CUDA_MPS_PIPE_DIRECTORY, or /tmp/nvidia-mps.
std::string MpsPipeDirectory();

// Looks at `directory`. Connects to the control daemon and sends nothing; takes microseconds.
MpsEndpoint ProbeMps(const std::string& directory);

// Both are served by one control daemon.
bool ShareMpsServer(const MpsEndpoint& a, const MpsEndpoint& b);

}  // namespace tandem
