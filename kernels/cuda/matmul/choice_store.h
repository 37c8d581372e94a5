// File: choice_store.h
//
// `ChoiceStore`: the algorithms that trials of products chose, in a file that processes of one user share, so
// that a product is tried once for a node.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "drivers/cublaslt/cublas_lt.h"

namespace tandem::cuda {

// An algorithm's words mean something to one version of cuBLASLt alone, and its speed to one kind of GPU. So
// each pair has a separate file, with a line for each product, appended by one write. The last line of a product
// holds. Lines that cannot be read are passed over: a process that died may have left half of one.
// A file that cannot be read or written costs the trials again, and is no error.
// Thread rule: any thread; processes share the file.
class ChoiceStore {
 public:
  // `folder` is made at the first Add where it does not exist; empty: nothing is found or kept. `gpu`: the
  // GPU's name. `version`: cuBLASLt's.
  ChoiceStore(std::string_view folder, std::string_view gpu, uint64_t version);

  // The algorithm that this process or another one added last; nothing where nobody has.
  std::optional<cublasLtMatmulAlgo_t> Find(const LtProduct& product);
  void Add(const LtProduct& product, const cublasLtMatmulAlgo_t& algorithm);

  // The file; empty where nothing is kept.
  const std::string& path() const { return path_; }

  // The file is left as it is from this size on: some 10,000 products.
  static constexpr uint64_t kMaxBytes = uint64_t{4} << 20;

 private:
  // Reads what was added since the last call. Under mutex_.
  void ReadOn();

  std::string path_;
  std::mutex mutex_;
  uint64_t read_ = 0;                                              // bytes, whole lines
  std::unordered_map<std::string, cublasLtMatmulAlgo_t> choices_;  // by the product's text
};

}  // namespace tandem::cuda
