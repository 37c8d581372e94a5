// File: dynamic_library.h
//
// `DynamicLibrary`: a vendor library loaded at run time, so that programs start on machines that do not have
// it.
#pragma once

#include <string>
#include <vector>

#include "tandem/status.h"

namespace tandem::cuda {

class DynamicLibrary {
 public:
  // Loads the first of `names` that can be loaded. UNAVAILABLE carries the loader's words for each. Never
  // unloaded: vendor libraries keep threads and exit handlers of their own.
  static Result<DynamicLibrary> Open(const std::vector<std::string>& names);

  // Sets *function to `symbol`. UNIMPLEMENTED names the symbol that the library lacks.
  template <typename Function>
  Status Find(const char* symbol, Function* function) const {
    TANDEM_ASSIGN_OR_RETURN(void* address, FindAddress(symbol));
    *function = reinterpret_cast<Function>(address);
    return Status::Ok();
  }

 private:
  Result<void*> FindAddress(const char* symbol) const;

  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace tandem::cuda
