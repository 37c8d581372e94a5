// A profiler's injection, as NVTX loads it by NVTX_INJECTION64_PATH: notes each range that is pushed or
// popped.
#include <nvtx3/nvToolsExt.h>

#include <mutex>
#include <string>
#include <vector>

namespace {

std::mutex mutex;
// Never destroyed: ranges may end later than this library's statics.
std::vector<std::string>& notes = *new std::vector<std::string>();
thread_local int depth = 0;

int Push(const char* message) {
  std::lock_guard lock(mutex);
  notes.emplace_back(message);
  return depth++;
}

int Pop() {
  std::lock_guard lock(mutex);
  notes.emplace_back(depth == 0 ? "pop of nothing" : "pop");
  return --depth;
}

}  // namespace

// NVTX calls it once, at the first range.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t table_of) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  if (callbacks == nullptr) return 0;
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) return 0;
  if (size <= NVTX_CBID_CORE_RangePop) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&Push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&Pop);
  return 1;
}

// Notes since the last call: the names of pushed ranges, and "pop"s.
extern "C" __attribute__((visibility("default"))) void TakeNvtxNotes(std::vector<std::string>* taken) {
  std::lock_guard lock(mutex);
  taken->swap(notes);
  notes.clear();
}
