// The file of choices: what other processes read, and what they pass over.
#include "kernels/cuda/matmul/choice_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace tandem::cuda {
namespace {

class ChoiceStoreTest : public testing::Test {
 protected:
  ~ChoiceStoreTest() override { std::filesystem::remove_all(root_); }

  ChoiceStore Open(uint64_t version = 130200) const { return ChoiceStore(folder_, "NVIDIA H200", version); }
  static LtProduct Product(uint64_t rows) {
    LtProduct product;
    product.x = {CUDA_R_16BF, 64, 48, 64, true};
    product.y = {CUDA_R_16BF, 64, rows, 64, false};
    product.d = {CUDA_R_16BF, 48, rows, 48, false};
    return product;
  }
  static cublasLtMatmulAlgo_t Algorithm(uint64_t seed) {
    cublasLtMatmulAlgo_t algorithm = {};
    for (uint64_t& word : algorithm.data) word = seed = seed * 0x9E3779B97F4A7C15u + 1;
    return algorithm;
  }
  static std::vector<uint64_t> Words(const std::optional<cublasLtMatmulAlgo_t>& algorithm) {
    if (!algorithm.has_value()) return {};
    return {std::begin(algorithm->data), std::end(algorithm->data)};
  }
  static std::string Text(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

  const std::string root_ = testing::TempDir() + "choice-store-" + std::to_string(::getpid()) + "-" +
                            testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string folder_ = root_ + "/a/b";
};

TEST_F(ChoiceStoreTest, AnotherOneFindsEachProductsLastChoice) {
  ChoiceStore first = Open(), second = Open();
  EXPECT_FALSE(second.Find(Product(1)).has_value());
  first.Add(Product(1), Algorithm(1));
  first.Add(Product(2), Algorithm(~uint64_t{0}));
  EXPECT_EQ(Words(second.Find(Product(1))), Words(Algorithm(1)));
  EXPECT_EQ(Words(second.Find(Product(2))), Words(Algorithm(~uint64_t{0})));
  EXPECT_FALSE(second.Find(Product(3)).has_value());
  first.Add(Product(1), Algorithm(3));
  EXPECT_EQ(Words(Open().Find(Product(1))), Words(Algorithm(3)));
}

TEST_F(ChoiceStoreTest, EveryFieldTellsProductsApart) {
  ChoiceStore store = Open();
  store.Add(Product(1), Algorithm(1));
  const std::vector<void (*)(LtProduct&)> changes = {
      [](LtProduct& p) { p.x.type = CUDA_R_16F; },
      [](LtProduct& p) { p.y.leading = 65; },
      [](LtProduct& p) { p.d.rows = 49; },
      [](LtProduct& p) { p.x.columns = 49; },
      [](LtProduct& p) { p.x.transposed = false; },
      [](LtProduct& p) { p.compute = CUBLAS_COMPUTE_16F; },
      [](LtProduct& p) { p.fast_accumulation = true; },
      [](LtProduct& p) { p.x_scales = LtScale::kTensor; },
      [](LtProduct& p) { p.y_scales = LtScale::kBlocks; },
      [](LtProduct& p) { p.has_bias = true; },
      [](LtProduct& p) { p.bias_type = CUDA_R_16BF; },
      [](LtProduct& p) { p.alignment = 2; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    LtProduct other = Product(1);
    changes[i](other);
    EXPECT_FALSE(store.Find(other).has_value()) << "change " << i;
  }
}

TEST_F(ChoiceStoreTest, OtherVersionsAndGpusHaveTheirOwn) {
  Open().Add(Product(1), Algorithm(1));
  EXPECT_FALSE(Open(130300).Find(Product(1)).has_value());
  EXPECT_FALSE(ChoiceStore(folder_, "NVIDIA H100", 130200).Find(Product(1)).has_value());
  EXPECT_TRUE(ChoiceStore(folder_, "NVIDIA H200", 130200).Find(Product(1)).has_value());
  const ChoiceStore odd(folder_, "../A/B GPU", 1);
  EXPECT_EQ(odd.path(), folder_ + "/cublaslt-1-___A_B_GPU");
}

TEST_F(ChoiceStoreTest, LinesThatCannotBeReadArePassedOver) {
  ChoiceStore store = Open();
  store.Add(Product(1), Algorithm(1));
  const std::string line = Text(store.path());
  ASSERT_TRUE(line.ends_with(" .\n"));
  store.Add(Product(2), Algorithm(2));
  const std::string both = Text(store.path());
  // Half a line, one within another one, too few words, too many, no number, and nothing.
  const std::string second = both.substr(line.size());
  const std::string key = line.substr(0, line.find(' '));
  for (const std::string& torn :
       {line.substr(0, line.size() / 2), line.substr(0, line.size() / 2) + line, key + " 1 2 .\n",
        line.substr(0, line.size() - 3) + " 1 .\n", key + " 1 2 3 4 5 6 7 x .\n", key + " .\n",
        std::string("\n"), std::string(" .\n"), std::string(300, '\0')}) {
    Write(store.path(), torn + (torn.ends_with('\n') ? "" : "\n") + second);
    ChoiceStore reader = Open();
    EXPECT_FALSE(reader.Find(Product(1)).has_value()) << torn;
    EXPECT_EQ(Words(reader.Find(Product(2))), Words(Algorithm(2))) << torn;
  }
  // A line that is still being written is read once it is whole.
  Write(store.path(), second + line.substr(0, 20));
  ChoiceStore reader = Open();
  EXPECT_FALSE(reader.Find(Product(1)).has_value());
  Write(store.path(), second + line);
  EXPECT_EQ(Words(reader.Find(Product(1))), Words(Algorithm(1)));
}

TEST_F(ChoiceStoreTest, WithoutAFolderNothingIsKeptOnDisk) {
  ChoiceStore none("", "GPU", 1);
  none.Add(Product(1), Algorithm(1));
  EXPECT_FALSE(none.Find(Product(1)).has_value());
  EXPECT_EQ(none.path(), "");
}

TEST_F(ChoiceStoreTest, WhatIsNoFileOfTheUsersIsLeftAlone) {
  ChoiceStore store = Open();
  std::filesystem::create_directories(folder_);
  const std::string target = root_ + "/target";
  Write(target, "");
  std::filesystem::create_symlink(target, store.path());
  store.Add(Product(1), Algorithm(1));
  EXPECT_EQ(Text(target), "");
  std::filesystem::remove(store.path());
  ASSERT_EQ(::mkfifo(store.path().c_str(), 0600), 0);
  EXPECT_FALSE(Open().Find(Product(2)).has_value()) << "and nobody waits for its other end";
}

TEST_F(ChoiceStoreTest, AFullFileStaysAsItIs) {
  ChoiceStore store = Open();
  store.Add(Product(1), Algorithm(1));
  const std::string line = Text(store.path());
  Write(store.path(), line + std::string(ChoiceStore::kMaxBytes - line.size() - 1, '#') + "\n");
  store.Add(Product(2), Algorithm(2));
  EXPECT_EQ(std::filesystem::file_size(store.path()), ChoiceStore::kMaxBytes);
  EXPECT_TRUE(Open().Find(Product(1)).has_value());
}

TEST_F(ChoiceStoreTest, LinesOfWritersBesideEachOtherStayWhole) {
  constexpr uint64_t kWriters = 4, kEach = 100;
  std::vector<std::thread> writers;
  for (uint64_t w = 0; w < kWriters; ++w) {
    writers.emplace_back([this, w] {
      ChoiceStore store = Open();
      for (uint64_t i = 0; i < kEach; ++i) store.Add(Product(1 + w * kEach + i), Algorithm(w * kEach + i));
    });
  }
  for (std::thread& writer : writers) writer.join();
  ChoiceStore reader = Open();
  for (uint64_t i = 0; i < kWriters * kEach; ++i) {
    EXPECT_EQ(Words(reader.Find(Product(1 + i))), Words(Algorithm(i)));
  }
}

}  // namespace
}  // namespace tandem::cuda
