// File: mock_cublas_lt.h
//
// A CublasLt without cuBLASLt: unless a test says otherwise, every product has one candidate, and its run
// succeeds without any work.
#pragma once

#include <gmock/gmock.h>

#include <vector>

#include "drivers/cublaslt/cublas_lt.h"

namespace tandem::cuda {

class MockCublasLt : public CublasLt {
 public:
  MockCublasLt() {
    using testing::_;
    using testing::Return;
    ON_CALL(*this, Candidates(_, _, _)).WillByDefault(Return(std::vector<cublasLtMatmulAlgo_t>(1)));
    ON_CALL(*this, Supports(_, _, _)).WillByDefault(Return(Result<bool>(true)));
    ON_CALL(*this, Run(_, _, _, _, _, _)).WillByDefault(Return(Status::Ok()));
  }
  MOCK_METHOD(uint64_t, Version, (), (const, override));
  MOCK_METHOD(Result<std::vector<cublasLtMatmulAlgo_t>>, Candidates, (const LtProduct&, size_t, int),
              (override));
  MOCK_METHOD(Result<bool>, Supports, (const LtProduct&, const cublasLtMatmulAlgo_t&, size_t), (override));
  MOCK_METHOD(Status, Run,
              (const LtProduct&, const LtOperands&, const cublasLtMatmulAlgo_t&, void*, size_t, CUstream),
              (override));
};

}  // namespace tandem::cuda
