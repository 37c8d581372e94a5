// The lists of fields: each names all fields of its type, and the codec carries every one of them.
#include "program/step_fields.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "program/program_codec.h"
#include "tandem/program/v1/program.pb.h"

namespace tandem::plan {
namespace {

template <class Value>
constexpr bool kIsOptional = false;
template <class Value>
constexpr bool kIsOptional<std::optional<Value>> = true;
template <class Value>
constexpr bool kIsVector = false;
template <class Value>
constexpr bool kIsVector<std::vector<Value>> = true;
template <class Value>
constexpr bool kIsWork = std::is_same_v<Value, decltype(Step::work)>;
template <class Value>
constexpr bool kIsNumber = std::is_arithmetic_v<Value> || std::is_enum_v<Value>;

// Stands for a value of any field.
struct AnyField {
  template <class Value>
  requires(!kIsOptional<Value>) operator Value() const;
};
template <class Part, size_t... I>
constexpr bool TakesFields(std::index_sequence<I...>) {
  return requires { Part{(static_cast<void>(I), AnyField{})...}; };
}
template <class Part, size_t kCount = 0>
constexpr size_t FieldsDeclared() {
  if constexpr (TakesFields<Part>(std::make_index_sequence<kCount + 1>())) {
    return FieldsDeclared<Part, kCount + 1>();
  } else {
    return kCount;
  }
}
template <class Part>
size_t FieldsListed() {
  const Part part = {};
  size_t count = 0;
  ForEachField([&count](const char*, const auto&) { ++count; }, part);
  return count;
}

template <class Part>
class FieldsTest : public testing::Test {};
using Parts = testing::Types<Ref, View, NopStep, CopyStep, Copy<std::byte*>, SignalStep, WaitStep, MatmulStep,
                             Matmul<std::byte*>, ReduceStep, NormStep, TransferPart, TransferGroupStep,
                             NcclStep, SkinnyStep, CollectiveStep, RankProgram>;
TYPED_TEST_SUITE(FieldsTest, Parts);

TYPED_TEST(FieldsTest, TheListNamesEveryFieldOfTheType) {
  EXPECT_EQ(FieldsListed<TypeParam>(), FieldsDeclared<TypeParam>());
}

// Sets every field to a valid value that is not its default, and that few others have.
class Filler {
 public:
  template <class Value>
  void Fill(const char* name, Value& value) {
    if constexpr (std::is_same_v<Value, bool>) {
      value = std::string_view(name) == "send" || !value;
    } else if constexpr (std::is_same_v<Value, DType>) {
      value = DType::kBf16;
    } else if constexpr (std::is_same_v<Value, NcclKind>) {
      value = NcclKind::kAllGather;
    } else if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, uint8_t>) {
      value = static_cast<Value>(static_cast<int>(value) + 1);  // ranks and shots, too
    } else if constexpr (std::is_arithmetic_v<Value>) {
      value = static_cast<Value>(1 + next_++ % 6);
    } else if constexpr (std::is_same_v<Value, std::string>) {
      value = "label " + std::to_string(next_++);
    } else if constexpr (std::is_same_v<Value, std::vector<Step>>) {
      value.resize(1);
      Fill(name, value[0]);
    } else if constexpr (std::is_same_v<Value, std::vector<uint32_t>>) {
      value.clear();  // dependencies: of the step that has any
    } else if constexpr (kIsVector<Value>) {
      value.resize(2);
      for (auto& each : value) Fill(name, each);
    } else if constexpr (kIsOptional<Value>) {
      Fill(name, value.emplace());
    } else if constexpr (kIsWork<Value>) {
      std::visit([&](auto& work) { Fill(name, work); }, value);
    } else {
      ForEachField([&](const char* field, auto& inner) { Fill(field, inner); }, value);
    }
  }

 private:
  int next_ = 0;
};

// Counts numbers and texts that are the same in both; reports those that are not.
class Comparer {
 public:
  template <class Value>
  void Compare(const std::string& path, const Value& a, const Value& b) {
    if constexpr (kIsNumber<Value> || std::is_same_v<Value, std::string>) {
      EXPECT_EQ(a, b) << path;
      ++count_;
    } else if constexpr (kIsVector<Value>) {
      ASSERT_EQ(a.size(), b.size()) << path;
      for (size_t i = 0; i < a.size(); ++i) Compare(path + "[" + std::to_string(i) + "]", a[i], b[i]);
    } else if constexpr (kIsOptional<Value>) {
      ASSERT_EQ(a.has_value(), b.has_value()) << path;
      if (a) Compare(path, *a, *b);
    } else if constexpr (kIsWork<Value>) {
      ASSERT_EQ(a.index(), b.index()) << path;
      std::visit([&](const auto& work) { Compare(path, work, std::get<std::decay_t<decltype(work)>>(b)); },
                 a);
    } else {
      ForEachField([&](const char* name, const auto& x,
                       const auto& y) { Compare(path.empty() ? name : path + "." + name, x, y); },
                   a, b);
    }
  }
  int count() const { return count_; }

 private:
  int count_ = 0;
};

template <size_t... I>
std::vector<Step> StepOfEachKind(std::index_sequence<I...>) {
  std::vector<Step> steps(sizeof...(I));
  ((steps[I].work.emplace<I>()), ...);
  return steps;
}

TEST(StepFieldsTest, TheCodecCarriesEveryField) {
  RankProgram program;
  program.rank = 1;
  program.world_size = kMaxWorldSize;
  program.lanes = kMaxLanes;
  program.workspace_bytes = 4096;
  program.bulk_bytes = 8192;
  program.signal_count = 7;
  program.steps = StepOfEachKind(std::make_index_sequence<std::variant_size_v<decltype(Step::work)>>());
  Filler filler;
  for (Step& step : program.steps) filler.Fill("step", step);
  program.steps.back().deps = {0, 3};

  program::v1::RankProgram message;
  EncodeProgram(program, &message);
  const Result<RankProgram> again = DecodeProgram(message);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  Comparer comparer;
  comparer.Compare("", program, *again);
  EXPECT_GT(comparer.count(), 400);

  // A difference is found wherever it lies.
  RankProgram other = *again;
  std::get<CollectiveStep>(other.steps[8].work).skinny->matmul.scale_b.ref.offset += 8;
  std::string found;
  Step& step = other.steps[8];
  ForEachField(
      [&found](const char* name, const auto& a, const auto& b) {
        if constexpr (std::is_same_v<std::decay_t<decltype(a)>, std::optional<SkinnyStep>>) {
          if (a->matmul.scale_b != b->matmul.scale_b) found = name;
        }
      },
      std::get<CollectiveStep>(step.work), std::get<CollectiveStep>(program.steps[8].work));
  EXPECT_EQ(found, "skinny");
}

TEST(StepFieldsTest, ViewsAreVisitedIfTheyAreThere) {
  ReduceStep sum;
  sum.sources.resize(2);
  const auto names = [&sum] {
    std::vector<std::string> all;
    EXPECT_TRUE(ForEachView(
                    [&all](const char* name, ViewUse use, const View&) {
                      all.push_back(std::string(use == ViewUse::kWrite ? "write " : "read ") + name);
                      return Status::Ok();
                    },
                    sum)
                    .ok());
    return all;
  };
  EXPECT_EQ(names(), (std::vector<std::string>{"read source", "read source", "write destination"}));
  sum.has_bias = true;
  EXPECT_EQ(names(),
            (std::vector<std::string>{"read source", "read source", "write destination", "read bias"}));
  int calls = 0;
  const Status stopped = ForEachView(
      [&calls](const char*, ViewUse, const View&) {
        ++calls;
        return Internal("enough");
      },
      sum);
  EXPECT_EQ(stopped.code(), Code::kInternal);
  EXPECT_EQ(calls, 1);
}

TEST(StepFieldsTest, StepsOfTwoPlacesGoSideBySide) {
  CopyStep from;
  from.src.extent = {4};
  Copy<std::byte*> to;
  EXPECT_TRUE(ForEachView(
                  [](const char*, ViewUse, const View& view, StridedView<std::byte*>& bound) {
                    bound.extent = view.extent;
                    return Status::Ok();
                  },
                  from, to)
                  .ok());
  EXPECT_EQ(to.src.extent, (std::vector<int64_t>{4}));
  EXPECT_TRUE(to.dst.extent.empty());
}

}  // namespace
}  // namespace tandem::plan
