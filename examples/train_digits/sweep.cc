#include "examples/train_digits/sweep.h"

#include <algorithm>
#include <chrono>

namespace tandem::digits {
namespace {

constexpr int kRepeats = 3;

float Value(int rank, size_t index) {
  return static_cast<float>((index * 7 + static_cast<size_t>(rank) * 13) % 101);
}

}  // namespace

Result<std::vector<SweepRow>> SweepAllReduce(const std::shared_ptr<Client>& client,
                                             const std::shared_ptr<Group>& group,
                                             const std::shared_ptr<RankDevice>& device) {
  constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;
  const std::vector<size_t> sizes = {4 * kKiB, 64 * kKiB, 256 * kKiB,   256 * kKiB + 4,
                                     kMiB,     10 * kMiB, 10 * kMiB + 4};
  TANDEM_ASSIGN_OR_RETURN(auto in, client->AllocateRegistered(sizes.back(), group->gpu_uuid()));
  TANDEM_ASSIGN_OR_RETURN(auto out, client->AllocateRegistered(sizes.back(), group->gpu_uuid()));
  TANDEM_ASSIGN_OR_RETURN(auto in_mirror, device->MakeMirror(*in));
  TANDEM_ASSIGN_OR_RETURN(auto out_mirror, device->MakeMirror(*out));
  auto* input = reinterpret_cast<float*>(in_mirror->data());
  auto* output = reinterpret_cast<float*>(out_mirror->data());
  for (size_t i = 0; i < sizes.back() / sizeof(float); ++i) input[i] = Value(group->rank(), i);

  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<RankStream> stream, device->MakeStream());
  TANDEM_RETURN_IF_ERROR(in_mirror->ToDevice(*stream, 0, sizes.back()));
  std::vector<SweepRow> rows;
  for (size_t bytes : sizes) {
    auto count = static_cast<int64_t>(bytes / sizeof(float));
    OpRequest request;
    request.op = Op::kAllReduce;
    request.operands = {{Role::kInput, {DType::kF32, {count}, {}}, false, -1},
                        {Role::kOutput, {DType::kF32, {count}, {}}, false, -1}};
    TANDEM_ASSIGN_OR_RETURN(auto plan, group->Prepare("sweep/" + std::to_string(bytes), request));
    Binding bindings[] = {{in.get(), 0}, {out.get(), 0}};
    std::vector<double> times;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      std::fill(output, output + count, -1.0f);
      TANDEM_RETURN_IF_ERROR(out_mirror->ToDevice(*stream, 0, bytes));
      TANDEM_RETURN_IF_ERROR(stream->Synchronize(Milliseconds(60000)));
      auto start = std::chrono::steady_clock::now();
      TANDEM_RETURN_IF_ERROR(plan->Launch(stream->ref(), bindings));
      TANDEM_RETURN_IF_ERROR(stream->Synchronize(Milliseconds(60000)));
      TANDEM_RETURN_IF_ERROR(plan->Wait());
      times.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
      TANDEM_RETURN_IF_ERROR(out_mirror->ToHost(*stream, 0, bytes));
      TANDEM_RETURN_IF_ERROR(stream->Synchronize(Milliseconds(60000)));
    }
    std::sort(times.begin(), times.end());
    SweepRow row{bytes, plan->info().algorithm, plan->info().reason, times[times.size() / 2], 0};
    for (int64_t i = 0; i < count; ++i) {
      float expected = 0;
      for (int rank = 0; rank < group->world_size(); ++rank) expected += Value(rank, static_cast<size_t>(i));
      if (output[i] != expected) ++row.wrong;
    }
    rows.push_back(row);
    TANDEM_RETURN_IF_ERROR(plan->Release());
  }
  return rows;
}

}  // namespace tandem::digits
