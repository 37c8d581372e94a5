// File: client_products.h
//
// `ClientProducts`: the shared part of client-placed products on one GPU. It has cuBLASLt's handle and the
// algorithm of each product.
#pragma once

#include <memory>
#include <mutex>

#include "kernels/cuda/client_launch/local_work.h"
#include "kernels/cuda/device/cuda_device.h"
#include "tandem/status.h"

namespace tandem::client {

// Thread-safe. The handle lives as long as the process.
class ClientProducts {
 public:
  explicit ClientProducts(std::shared_ptr<cuda::CudaDevice> device) : device_(std::move(device)) {}

  // Local work for the launches of one group, with the device's context current. The first call loads
  // cuBLASLt: the copy that the process has, else the one that the loader finds. UNAVAILABLE without one.
  // The memory is given back without waiting for a GPU: no kernel may use it any more by then.
  Result<std::shared_ptr<cuda::LocalWork>> MakeWork();

 private:
  const std::shared_ptr<cuda::CudaDevice> device_;
  std::mutex mutex_;
  std::shared_ptr<cuda::MatmulChooser> chooser_;
};

}  // namespace tandem::client
