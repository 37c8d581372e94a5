// File: json_lines.h
//
// The line between a program and the ranks that it starts: JSON objects, one a line, over a pair of pipes.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/unique_fd.h"

namespace tandem {

// Writes one object; false if the other end has gone.
bool WriteLine(int fd, const nlohmann::json& object);

// Collects lines from a pipe.
class LineReader {
 public:
  explicit LineReader(UniqueFd fd) : fd_(std::move(fd)) {}
  int fd() const { return fd_.get(); }
  // Reads what is there (blocks if nothing is); false at the end of the file.
  bool Fill();
  // The next whole line read so far.
  std::optional<nlohmann::json> Next();

 private:
  UniqueFd fd_;
  std::string buffer_;
};

}  // namespace tandem
