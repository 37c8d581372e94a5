// The library's handling of device pointers: the kinds of memory that CUDA has, the memory that can be
// registered and how, and memory that comes and goes at one address.
#include "tests/gpu/client_cuda_fixture.h"

namespace tandem::client {
namespace {

uint64_t Attribute(cuda::CudaDriver& driver, CUpointer_attribute attribute, const void* pointer) {
  uint64_t value = 0;
  Status status = driver.PointerGetAttribute(&value, attribute, reinterpret_cast<CUdeviceptr>(pointer));
  return status.ok() ? value : ~uint64_t{0};
}

void Show(cuda::CudaDriver& driver, const char* what, const void* pointer) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  Status range = driver.MemGetAddressRange(reinterpret_cast<CUdeviceptr>(pointer), &base, &bytes);
  printf(
      "%-14s %p type %ld buffer %ld block %ld ipc %ld handles %ld pool %lx range %lx+%lx mapping %lx+%lx "
      "address "
      "range %llx+%zx %s\n",
      what, pointer, static_cast<long>(Attribute(driver, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)),
      static_cast<long>(Attribute(driver, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer)),
      static_cast<long>(Attribute(driver, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, pointer)),
      static_cast<long>(Attribute(driver, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pointer)),
      static_cast<long>(Attribute(driver, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, pointer)),
      Attribute(driver, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer),
      Attribute(driver, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer),
      Attribute(driver, CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer),
      Attribute(driver, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, pointer),
      Attribute(driver, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, pointer), base, bytes,
      range.ok() ? "" : range.message().c_str());
}

TEST_F(ClientCudaTest, MemoryIsRegisteredAsItsAllocation) {
  char *first = nullptr, *second = nullptr;
  ASSERT_CUDA(cudaMalloc(&first, 3000));
  ASSERT_CUDA(cudaMalloc(&second, 5 << 20));
  Show(*driver_, "cudaMalloc", first);
  Show(*driver_, "cudaMalloc +", second + 100);
  auto memory = client_->RegisterCuda(second + 512, 1 << 20);
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  EXPECT_EQ((*memory)->registration_offset(), 512u);
  EXPECT_EQ(daemon_->registered.size(), 1u);
  EXPECT_EQ(daemon_->registered[0].ipc_handle.size(), 64u);
  EXPECT_EQ(daemon_->registered[0].bytes, size_t{5} << 20);
  // The same allocation again is no new registration, by whatever address.
  auto again = client_->RegisterCuda(second, 100).value();
  EXPECT_EQ(again->registration_id(), (*memory)->registration_id());
  EXPECT_EQ(daemon_->registered.size(), 1u);
  EXPECT_EQ(client_->RegisterCuda(second + 512, 5 << 20).status().code(), Code::kOutOfRange);
  EXPECT_TRUE((*memory)->Check().ok());
  // Freed, and other memory at the same address.
  ASSERT_CUDA(cudaFree(second));
  Status freed = (*memory)->Check();
  EXPECT_EQ(freed.detail().reason, "MEMORY_FREED") << freed.ToString();
  char* third = nullptr;
  ASSERT_CUDA(cudaMalloc(&third, 5 << 20));
  printf("allocated again %s\n", third == second ? "at the same address" : "elsewhere");
  EXPECT_EQ((*memory)->Check().detail().reason, "MEMORY_FREED");
  auto renewed = client_->RegisterCuda(third + 512, 1 << 20).value();
  EXPECT_NE(renewed->registration_id(), (*memory)->registration_id());
  EXPECT_EQ(daemon_->registered.size(), 2u);
  ASSERT_CUDA(cudaFree(first));
  ASSERT_CUDA(cudaFree(third));
}

TEST_F(ClientCudaTest, OtherKindsOfMemoryAreRefusedWithAReason) {
  void *host = nullptr, *managed = nullptr, *pooled = nullptr;
  ASSERT_CUDA(cudaHostAlloc(&host, 4096, cudaHostAllocDefault));
  ASSERT_CUDA(cudaMallocManaged(&managed, 4096));
  ASSERT_CUDA(cudaMallocAsync(&pooled, 4096, stream_));
  ASSERT_TRUE(Drained(stream_));
  int on_stack = 0;
  for (const auto& [what, pointer] : std::initializer_list<std::pair<const char*, void*>>{
           {"stack", &on_stack}, {"host", host}, {"managed", managed}, {"pooled", pooled}}) {
    Show(*driver_, what, pointer);
    Status refused = client_->RegisterCuda(pointer, 4).status();
    EXPECT_EQ(refused.detail().reason, "NOT_REGISTRABLE") << what << ": " << refused.ToString();
    printf("  %s\n", refused.message().c_str());
  }
  EXPECT_TRUE(daemon_->registered.empty());
  ASSERT_CUDA(cudaFreeHost(host));
  ASSERT_CUDA(cudaFree(managed));
  ASSERT_CUDA(cudaFreeAsync(pooled, stream_));
}

// An address range of chunks, as PyTorch's expandable segments have it.
class Range {
 public:
  Range(cuda::CudaDevice& device, size_t chunk, size_t chunks)
      : driver_(device.driver()), properties_(device.AllocationProperties()), chunk_(chunk), chunks_(chunks) {
    address_ = driver_.MemAddressReserve(chunk * chunks, 0).value();
  }
  ~Range() { (void)driver_.MemAddressFree(address_, chunk_ * chunks_); }
  void Map(size_t index) {
    auto handle = driver_.MemCreate(chunk_, properties_).value();
    ASSERT_OK(driver_.MemMap(address_ + index * chunk_, chunk_, handle));
    ASSERT_OK(driver_.MemRelease(handle));
    CUmemAccessDesc access = {};
    access.location = properties_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ASSERT_OK(driver_.MemSetAccess(address_ + index * chunk_, chunk_, access));
  }
  void Unmap(size_t index) { ASSERT_OK(driver_.MemUnmap(address_ + index * chunk_, chunk_)); }
  char* at(size_t offset) const { return reinterpret_cast<char*>(address_ + offset); }

 private:
  cuda::CudaDriver& driver_;
  const CUmemAllocationProp properties_;
  const size_t chunk_, chunks_;
  CUdeviceptr address_ = 0;
};

TEST_F(ClientCudaTest, RangesOfChunksAreRegisteredByTheChunksTouched) {
  auto device = cuda::CudaDevice::Create(driver_, 0).value();
  constexpr size_t kChunk = 2 << 20;
  Range range(*device, kChunk, 4);
  for (size_t i = 0; i < 3; ++i) range.Map(i);
  Show(*driver_, "chunk 0", range.at(0));
  Show(*driver_, "chunk 1 +", range.at(kChunk + 4096));
  Show(*driver_, "chunk 2", range.at(2 * kChunk));
  auto memory = client_->RegisterCuda(range.at(kChunk + 512), kChunk);
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  EXPECT_EQ((*memory)->registration_offset(), 512u);
  ASSERT_EQ(daemon_->registered.size(), 1u);
  EXPECT_EQ(daemon_->registered[0].chunk_bytes, (std::vector<uint64_t>{kChunk, kChunk}));
  EXPECT_EQ(client_->RegisterCuda(range.at(2 * kChunk), 100).value()->registration_id(),
            (*memory)->registration_id());
  EXPECT_EQ(client_->RegisterCuda(range.at(0), 100).value()->registration_offset(), 0u);
  EXPECT_EQ(daemon_->registered.size(), 2u);
  EXPECT_EQ(client_->RegisterCuda(range.at(2 * kChunk), 2 * kChunk).status().code(), Code::kOutOfRange);
  // A chunk that is not touched may go; one that is and comes back is another.
  range.Unmap(0);
  EXPECT_TRUE((*memory)->Check().ok());
  range.Unmap(2);
  EXPECT_EQ((*memory)->Check().detail().reason, "MEMORY_FREED");
  range.Map(2);
  EXPECT_EQ((*memory)->Check().detail().reason, "MEMORY_FREED");
  Show(*driver_, "chunk 2 again", range.at(2 * kChunk));
  EXPECT_TRUE(client_->RegisterCuda(range.at(2 * kChunk), 100).ok());
  range.Unmap(1);
  range.Unmap(2);
}

}  // namespace
}  // namespace tandem::client
