// A stand-in for libnvidia-ml.so.1 with one GPU, loaded by nvml_test through dlopen. TANDEM_FAKE_NVML selects
// a fault: "init" (the driver does not answer), "lost" (the GPU is gone). The interface follows nvml.h of
// CUDA 13.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int open_count = 0;

bool Fault(const char* name) {
  const char* fault = std::getenv("TANDEM_FAKE_NVML");
  return fault != nullptr && std::strcmp(fault, name) == 0;
}

int Text(char* out, unsigned int size, const char* text) {
  if (std::strlen(text) >= size) return 7;  // insufficient size
  std::strcpy(out, text);
  return 0;
}

struct PciInfo {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct Memory {
  unsigned long long total, free, used;
};

struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_memory;
  unsigned int gpu_instance, compute_instance;
};

struct EventData {
  void* device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};

struct FabricInfo {
  unsigned char cluster_uuid[16];
  int status;
  unsigned int clique_id;
  unsigned char state;
};

int the_gpu = 0;
int the_set = 0;
int open_sets = 0, waits = 0;

}  // namespace

#define NVML_EXPORT extern "C" __attribute__((visibility("default")))

NVML_EXPORT int nvmlInit_v2() {
  if (Fault("init")) return 9;
  ++open_count;
  return 0;
}
NVML_EXPORT int nvmlShutdown() { return --open_count >= 0 ? 0 : 1; }
NVML_EXPORT int FakeNvmlOpenCount() { return open_count; }
NVML_EXPORT int nvmlSystemGetDriverVersion(char* out, unsigned int size) {
  return Text(out, size, "580.00.fake");
}
NVML_EXPORT int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 1;
  return 0;
}
NVML_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  if (index != 0) return 2;
  if (Fault("lost")) return 15;
  *device = &the_gpu;
  return 0;
}
NVML_EXPORT int nvmlDeviceGetUUID(void* device, char* out, unsigned int size) {
  return device == &the_gpu ? Text(out, size, "GPU-fake") : 2;
}
NVML_EXPORT int nvmlDeviceGetName(void*, char* out, unsigned int size) { return Text(out, size, "Fake GPU"); }
NVML_EXPORT int nvmlDeviceGetPciInfo_v3(void*, PciInfo* info) {
  std::strcpy(info->bus_id, "00000000:3B:00.0");
  return 0;
}
NVML_EXPORT int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {12345, 1, 2};
  return 0;
}
// More processes than a first guess holds; the first one's memory is not known.
NVML_EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned int* count, ProcessInfo* out) {
  const unsigned int room = *count;
  *count = 100;
  if (room < *count) return 7;
  for (unsigned int i = 0; i < *count; ++i) out[i] = {1000 + i, i == 0 ? ~0ull : i, 0, 0};
  return 0;
}
NVML_EXPORT int nvmlDeviceGetMigMode(void*, unsigned int* current, unsigned int* pending) {
  *current = 1;
  *pending = 0;
  return 0;
}
NVML_EXPORT int nvmlDeviceGetComputeMode(void*, unsigned int* mode) {
  *mode = 3;
  return 0;
}
NVML_EXPORT int nvmlDeviceGetGpuFabricInfo(void*, FabricInfo* info) {
  *info = {};
  info->status = 6;
  info->state = 3;
  return 0;
}
NVML_EXPORT int nvmlDeviceGetNvLinkState(void*, unsigned int link, unsigned int* active) {
  if (link > 1) return 2;
  *active = link == 0 ? 1 : 0;
  return 0;
}
NVML_EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned int, unsigned int* type) {
  *type = 2;
  return 0;
}
NVML_EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned int, PciInfo* info) {
  std::memset(info->bus_id, 'x', sizeof(info->bus_id));  // not terminated
  return 0;
}
NVML_EXPORT int nvmlDeviceGetP2PStatus(void*, void*, unsigned int index, unsigned int* status) {
  *status = index == 1 ? 4 : 0;
  return 0;
}
NVML_EXPORT int nvmlDeviceGetTotalEccErrors(void*, unsigned int type, unsigned int counter,
                                            unsigned long long* count) {
  *count = type == 1 && counter == 0 ? 3 : 99;
  return 0;
}
NVML_EXPORT int nvmlDeviceGetRemappedRows(void*, unsigned int* correctable, unsigned int* uncorrectable,
                                          unsigned int* pending, unsigned int* failed) {
  *correctable = 1;
  *uncorrectable = 2;
  *pending = 1;
  *failed = 0;
  return 0;
}
// The older name of nvmlDeviceGetCurrentClocksEventReasons, which is missing.
NVML_EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 0x48;
  return 0;
}
NVML_EXPORT int nvmlDeviceGetNvLinkErrorCounter(void*, unsigned int link, unsigned int counter,
                                                unsigned long long* count) {
  if (link > 1) return 2;
  *count = 10 + counter;
  return 0;
}
NVML_EXPORT int nvmlEventSetCreate(void** set) {
  *set = &the_set;
  ++open_sets;
  waits = 0;
  return 0;
}
NVML_EXPORT int nvmlEventSetFree(void* set) {
  --open_sets;
  return set == &the_set ? 0 : 2;
}
NVML_EXPORT int FakeNvmlOpenSets() { return open_sets; }
NVML_EXPORT int nvmlDeviceRegisterEvents(void* device, unsigned long long types, void* set) {
  if (Fault("no_events")) return 3;
  return device == &the_gpu && types == 8 && set == &the_set ? 0 : 2;
}
// One XID, then nothing, then a fault.
NVML_EXPORT int nvmlEventSetWait_v2(void* set, EventData* data, unsigned int timeout_ms) {
  if (set != &the_set || timeout_ms != 5) return 2;
  *data = {&the_gpu, 8, 79, 0, 0};
  constexpr int kAnswers[] = {0, 10, 15};
  return waits < 3 ? kAnswers[waits++] : 15;
}
// nvmlDeviceGetTopologyCommonAncestor is missing, as from an old driver.
