#include "program/program_codec.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "common/op_tables.h"
#include "program/kernel_phases.h"
#include "program/skinny_layout.h"
#include "program/step_fields.h"
#include "tandem/program/v1/program.pb.h"

namespace tandem::plan {
namespace {

namespace pb = program::v1;

constexpr int kMaxViewDimensions = 16;

template <class Value>
constexpr bool kIsNumber = std::is_arithmetic_v<Value> || std::is_enum_v<Value>;
template <class Value>
constexpr bool kIsVector = false;
template <class Value>
constexpr bool kIsVector<std::vector<Value>> = true;
template <class Value>
constexpr bool kIsOptional = false;
template <class Value>
constexpr bool kIsOptional<std::optional<Value>> = true;

// Each part with the list of its fields; views, steps and programs have functions of their own.
#define TANDEM_PARTS(P)                              \
  P(NopStep, TANDEM_NOP_FIELDS)                      \
  P(CopyStep, TANDEM_COPY_FIELDS)                    \
  P(SignalStep, TANDEM_SIGNAL_FIELDS)                \
  P(WaitStep, TANDEM_WAIT_FIELDS)                    \
  P(MatmulStep, TANDEM_MATMUL_FIELDS)                \
  P(ReduceStep, TANDEM_REDUCE_FIELDS)                \
  P(TransferPart, TANDEM_TRANSFER_PART_FIELDS)       \
  P(TransferGroupStep, TANDEM_TRANSFER_GROUP_FIELDS) \
  P(NcclStep, TANDEM_NCCL_FIELDS)                    \
  P(SkinnyStep, TANDEM_SKINNY_FIELDS)                \
  P(CollectiveStep, TANDEM_COLLECTIVE_FIELDS)        \
  P(NormStep, TANDEM_NORM_FIELDS)

// Writes parts into their messages.
class Encoder {
 public:
  static void Encode(const View& view, pb::View* message) {
    pb::Ref* ref = message->mutable_ref();
    ref->set_space(static_cast<uint32_t>(view.ref.space));
    ref->set_rank(view.ref.rank);
    ref->set_slot(view.ref.slot);
    ref->set_offset(view.ref.offset);
    message->set_dtype(static_cast<uint32_t>(view.dtype));
    for (int64_t extent : view.extent) message->add_extent(extent);
    for (int64_t stride : view.stride) message->add_stride(stride);
  }

  static void Encode(const Step& step, pb::Step* message) {
    message->set_lane(step.lane);
    for (uint32_t dep : step.deps) message->add_deps(dep);
    message->set_label(step.label);
#define TANDEM_WORK(Type, field, Case) \
  if (const auto* work = std::get_if<Type>(&step.work)) Encode(*work, message->mutable_##field());
    TANDEM_STEP_WORKS(TANDEM_WORK)
#undef TANDEM_WORK
  }

 private:
#define TANDEM_ENCODE(kind, ...) TANDEM_ENCODE_##kind(__VA_ARGS__)
#define TANDEM_ENCODE_VALUE(name)                                           \
  if constexpr (std::is_enum_v<decltype(part.name)>) {                      \
    message->set_##name(static_cast<uint32_t>(part.name));                  \
  } else if constexpr (kIsNumber<decltype(part.name)>) {                    \
    message->set_##name(part.name);                                         \
  } else if constexpr (kIsVector<decltype(part.name)>) {                    \
    for (const auto& each : part.name) Encode(each, message->add_##name()); \
  } else if constexpr (kIsOptional<decltype(part.name)>) {                  \
    if (part.name) Encode(*part.name, message->mutable_##name());           \
  } else {                                                                  \
    Encode(part.name, message->mutable_##name());                           \
  }
#define TANDEM_ENCODE_FLAG(name)  // the view behind it is in the message or not
#define TANDEM_ENCODE_READ(name, text) TANDEM_ENCODE_VALUE(name)
#define TANDEM_ENCODE_WRITE(name, text) TANDEM_ENCODE_VALUE(name)
#define TANDEM_ENCODE_MAY_READ(name, text, flag) \
  if (part.flag) Encode(part.name, message->mutable_##name());
#define TANDEM_ENCODE_MAY_WRITE(name, text, flag) TANDEM_ENCODE_MAY_READ(name, text, flag)
#define TANDEM_ENCODER(Type, LIST)                                                           \
  template <class Part, class Message>                                                       \
  requires std::is_same_v<Part, Type>                                                        \
  static void Encode([[maybe_unused]] const Part& part, [[maybe_unused]] Message* message) { \
    LIST(TANDEM_ENCODE)                                                                      \
  }
  TANDEM_PARTS(TANDEM_ENCODER)
#undef TANDEM_ENCODER
};

// Reads the steps of one program.
class Decoder {
 public:
  Decoder(int world_size, int lanes) : world_size_(world_size), lanes_(lanes) {}

  // Step `index` of the program.
  Status DecodeStep(const pb::Step& message, uint32_t index, Step* step) {
    index_ = index;
    return Decode(message, step);
  }

 private:
  Status Bad(const char* what) const {
    return InvalidArgument("step " + std::to_string(index_) + " of the program has a bad " + what);
  }

  Status Decode(const pb::Step& message, Step* step) {
    const bool nested = nested_;
    if (message.lane() >= static_cast<uint32_t>(lanes_)) return Bad("lane");
    step->lane = static_cast<uint16_t>(message.lane());
    step->label = message.label();
    for (uint32_t dep : message.deps()) {
      if (nested || dep >= index_) return Bad("dependency");
      step->deps.push_back(dep);
    }
    if (nested && message.has_collective()) return Bad("nested collective");
    nested_ = true;
    Status decoded = Bad("kind");
    switch (message.work_case()) {
#define TANDEM_WORK(Type, field, Case) \
  case pb::Step::k##Case: decoded = Decode(message.field(), &step->work.emplace<Type>()); break;
      TANDEM_STEP_WORKS(TANDEM_WORK)
#undef TANDEM_WORK
      case pb::Step::WORK_NOT_SET: break;
    }
    nested_ = nested;
    return decoded;
  }

  Status Decode(const pb::View& message, View* view) const {
    if (message.ref().space() > static_cast<uint32_t>(Space::kBulk)) return Bad("space");
    if (message.ref().slot() > 0xffff) return Bad("slot");
    if (message.dtype() > 0xff || !IsValid(static_cast<DType>(message.dtype()))) return Bad("dtype");
    if (message.extent_size() != message.stride_size() || message.extent_size() > kMaxViewDimensions) {
      return Bad("number of dimensions");
    }
    if (message.ref().rank() >= static_cast<uint32_t>(world_size_)) return Bad("rank");
    view->ref = {static_cast<Space>(message.ref().space()), static_cast<uint8_t>(message.ref().rank()),
                 static_cast<uint16_t>(message.ref().slot()), message.ref().offset()};
    view->dtype = static_cast<DType>(message.dtype());
    view->extent.assign(message.extent().begin(), message.extent().end());
    view->stride.assign(message.stride().begin(), message.stride().end());
    for (int64_t extent : view->extent) {
      if (extent < 0) return Bad("extent");
    }
    return Status::Ok();
  }

  template <class Wire, class Number>
  Status Take(Wire value, const char* name, Number* number) const {
    if constexpr (std::is_integral_v<Number> && !std::is_same_v<Number, bool>) {
      if (!std::in_range<Number>(value)) return Bad(name);
    } else if constexpr (std::is_same_v<Number, ReduceOp>) {
      if (FindValue<ReduceOp>(value) == nullptr) return Bad("reduction");
    } else if constexpr (std::is_same_v<Number, NcclKind>) {
      if (value > static_cast<uint32_t>(NcclKind::kBarrier)) return Bad("collective kind");
    }
    *number = static_cast<Number>(value);
    return Status::Ok();
  }

  // What a part's types alone do not demand.
  template <class Part>
  Status Check(Part*) const {
    return Status::Ok();
  }
  Status CheckSignal(int rank, int index) const {
    if (rank >= world_size_) return Bad("rank");
    return index < kSignalsPerWriter ? Status::Ok() : Bad("signal index");
  }
  Status Check(SignalStep* signal) const { return CheckSignal(signal->to_rank, signal->index); }
  Status Check(WaitStep* wait) const { return CheckSignal(wait->from_rank, wait->index); }
  Status Check(TransferPart* part) const { return CheckSignal(part->peer, part->index); }
  Status Check(MatmulStep* matmul) const {
    const bool within = matmul->first_column >= 0 && matmul->first_column < kScaleBlock;
    return within ? Status::Ok() : Bad("first column");
  }
  Status Check(NcclStep* nccl) const {
    return nccl->root >= 0 && nccl->root < world_size_ ? Status::Ok() : Bad("root");
  }
  Status Check(SkinnyStep* skinny) const {
    skinny->most_ctas = std::clamp(skinny->most_ctas, 0, kSkinnyCtas);
    return Status::Ok();
  }
  Status Check(CollectiveStep* collective) const {
    if (collective->first_signal + collective->signal_count > kSignalsPerWriter) return Bad("signal range");
    const int most = collective->algorithm == Algorithm::kFused ? kMaxFusedBlocks
                     : collective->dense                        ? kMaxDenseBlocks
                                                                : kMaxKernelBlocks;
    if (collective->blocks > most) return Bad("number of blocks");
    collective->shots = collective->shots == 2 ? 2 : 1;
    return Status::Ok();
  }

#define TANDEM_DECODE(kind, ...) TANDEM_DECODE_##kind(__VA_ARGS__)
#define TANDEM_DECODE_VALUE(name)                                                                    \
  if constexpr (kIsNumber<decltype(part->name)>) {                                                   \
    TANDEM_RETURN_IF_ERROR(Take(message.name(), #name, &part->name));                                \
  } else if constexpr (kIsVector<decltype(part->name)>) {                                            \
    for (const auto& each : message.name())                                                          \
      TANDEM_RETURN_IF_ERROR(Decode(each, &part->name.emplace_back()));                              \
  } else if constexpr (kIsOptional<decltype(part->name)>) {                                          \
    if (message.has_##name()) TANDEM_RETURN_IF_ERROR(Decode(message.name(), &part->name.emplace())); \
  } else {                                                                                           \
    TANDEM_RETURN_IF_ERROR(Decode(message.name(), &part->name));                                     \
  }
#define TANDEM_DECODE_FLAG(name) part->name = message.name();
#define TANDEM_DECODE_READ(name, text) TANDEM_DECODE_VALUE(name)
#define TANDEM_DECODE_WRITE(name, text) TANDEM_DECODE_VALUE(name)
#define TANDEM_DECODE_MAY_READ(name, text, flag) \
  if (part->flag) TANDEM_RETURN_IF_ERROR(Decode(message.name(), &part->name));
#define TANDEM_DECODE_MAY_WRITE(name, text, flag) TANDEM_DECODE_MAY_READ(name, text, flag)
#define TANDEM_DECODER(Type, LIST)                                                                         \
  template <class Part, class Message>                                                                     \
  requires std::is_same_v<Part, Type> Status Decode([[maybe_unused]] const Message& message, Part* part) { \
    LIST(TANDEM_DECODE)                                                                                    \
    return Check(part);                                                                                    \
  }
  TANDEM_PARTS(TANDEM_DECODER)
#undef TANDEM_DECODER

  int world_size_;
  int lanes_;
  uint32_t index_ = 0;   // of the program's step
  bool nested_ = false;  // within a collective's expansion
};

}  // namespace

void EncodeProgram(const RankProgram& program, program::v1::RankProgram* message) {
  message->Clear();
  message->set_rank(program.rank);
  message->set_world_size(program.world_size);
  message->set_lanes(program.lanes);
  message->set_workspace_bytes(program.workspace_bytes);
  message->set_bulk_bytes(program.bulk_bytes);
  message->set_signal_count(program.signal_count);
  for (const Step& step : program.steps) Encoder::Encode(step, message->add_steps());
}

Result<RankProgram> DecodeProgram(const program::v1::RankProgram& message) {
  RankProgram program;
  program.rank = message.rank();
  program.world_size = message.world_size();
  program.lanes = message.lanes();
  program.workspace_bytes = message.workspace_bytes();
  program.bulk_bytes = message.bulk_bytes();
  program.signal_count = message.signal_count();
  if (program.world_size < 1 || program.world_size > kMaxWorldSize) return InvalidArgument("bad world size");
  if (program.rank < 0 || program.rank >= program.world_size) return InvalidArgument("bad rank");
  if (program.lanes < 1 || program.lanes > kMaxLanes) return InvalidArgument("bad number of lanes");
  if (program.signal_count < 0 || program.signal_count > kSignalsPerWriter) {
    return InvalidArgument("bad number of signals");
  }
  Decoder decoder(program.world_size, program.lanes);
  for (int i = 0; i < message.steps_size(); ++i) {
    Step step;
    TANDEM_RETURN_IF_ERROR(decoder.DecodeStep(message.steps(i), static_cast<uint32_t>(i), &step));
    program.steps.push_back(std::move(step));
  }
  return program;
}

}  // namespace tandem::plan
