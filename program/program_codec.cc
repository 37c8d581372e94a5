#include "program/program_codec.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "program/kernel_phases.h"
#include "program/skinny_layout.h"
#include "tandem/program/v1/program.pb.h"

namespace tandem::plan {
namespace {

namespace pb = program::v1;

constexpr int kMaxViewDimensions = 16;

void EncodeView(const View& view, pb::View* message) {
  pb::Ref* ref = message->mutable_ref();
  ref->set_space(static_cast<uint32_t>(view.ref.space));
  ref->set_rank(view.ref.rank);
  ref->set_slot(view.ref.slot);
  ref->set_offset(view.ref.offset);
  message->set_dtype(static_cast<uint32_t>(view.dtype));
  for (int64_t extent : view.extent) message->add_extent(extent);
  for (int64_t stride : view.stride) message->add_stride(stride);
}

void EncodeMatmul(const MatmulStep& step, pb::Matmul* matmul) {
  EncodeView(step.a, matmul->mutable_a());
  EncodeView(step.b, matmul->mutable_b());
  EncodeView(step.c, matmul->mutable_c());
  matmul->set_alpha(step.alpha);
  matmul->set_accumulate(step.accumulate);
  if (step.has_scale_a) EncodeView(step.scale_a, matmul->mutable_scale_a());
  if (step.has_scale_b) EncodeView(step.scale_b, matmul->mutable_scale_b());
  if (step.has_bias) EncodeView(step.bias, matmul->mutable_bias());
  if (step.has_result_scale) EncodeView(step.result_scale, matmul->mutable_result_scale());
  matmul->set_block_scales(step.block_scales);
  matmul->set_first_column(step.first_column);
  matmul->set_fast_accumulation(step.fast_accumulation);
  if (step.has_chunk_signals) EncodeView(step.chunk_signals, matmul->mutable_chunk_signals());
  matmul->set_chunk_pivot(step.chunk_pivot);
}

void EncodeStep(const Step& step, pb::Step* message);

struct Encoder {
  pb::Step* out;
  void operator()(const NopStep&) const { out->mutable_nop(); }
  void operator()(const CopyStep& step) const {
    EncodeView(step.src, out->mutable_copy()->mutable_src());
    EncodeView(step.dst, out->mutable_copy()->mutable_dst());
    out->mutable_copy()->set_copy_engine(step.copy_engine);
  }
  void operator()(const SignalStep& step) const {
    out->mutable_signal()->set_to_rank(step.to_rank);
    out->mutable_signal()->set_index(step.index);
  }
  void operator()(const WaitStep& step) const {
    out->mutable_wait()->set_from_rank(step.from_rank);
    out->mutable_wait()->set_index(step.index);
  }
  void operator()(const MatmulStep& step) const { EncodeMatmul(step, out->mutable_matmul()); }
  void operator()(const ReduceStep& step) const {
    pb::Reduce* reduce = out->mutable_reduce();
    for (const View& source : step.sources) EncodeView(source, reduce->add_sources());
    EncodeView(step.dst, reduce->mutable_dst());
    reduce->set_scale(step.scale);
    if (step.has_bias) EncodeView(step.bias, reduce->mutable_bias());
    if (step.has_result_scale) EncodeView(step.result_scale, reduce->mutable_result_scale());
  }
  void operator()(const NormStep& step) const {
    pb::Norm* norm = out->mutable_norm();
    EncodeView(step.sum, norm->mutable_sum());
    EncodeView(step.weight, norm->mutable_weight());
    EncodeView(step.out, norm->mutable_out());
    norm->set_epsilon(step.epsilon);
    if (!step.has_residual) return;
    EncodeView(step.residual, norm->mutable_residual());
    EncodeView(step.residual_out, norm->mutable_residual_out());
  }
  void operator()(const TransferGroupStep& step) const {
    pb::TransferGroup* group = out->mutable_transfer_group();
    for (const TransferPart& part : step.parts) {
      pb::TransferPart* to = group->add_parts();
      to->set_send(part.send);
      to->set_peer(part.peer);
      to->set_index(part.index);
      if (!part.send) continue;
      EncodeView(part.src, to->mutable_src());
      EncodeView(part.dst, to->mutable_dst());
    }
  }
  void operator()(const NcclStep& step) const {
    pb::Nccl* nccl = out->mutable_nccl();
    nccl->set_kind(static_cast<uint32_t>(step.kind));
    EncodeView(step.in, nccl->mutable_in());
    EncodeView(step.out, nccl->mutable_out());
    nccl->set_reduce_op(static_cast<uint32_t>(step.reduce_op));
    nccl->set_root(step.root);
  }
  void operator()(const CollectiveStep& step) const {
    pb::Collective* collective = out->mutable_collective();
    collective->set_algorithm(static_cast<uint32_t>(step.algorithm));
    collective->set_op(static_cast<uint32_t>(step.op));
    EncodeView(step.in, collective->mutable_in());
    EncodeView(step.out, collective->mutable_out());
    collective->set_reduce_op(static_cast<uint32_t>(step.reduce_op));
    collective->set_first_signal(step.first_signal);
    collective->set_signal_count(step.signal_count);
    collective->set_blocks(step.blocks);
    collective->set_shots(step.shots);
    collective->set_dense(step.dense);
    if (step.skinny) {
      EncodeMatmul(step.skinny->matmul, collective->mutable_skinny()->mutable_matmul());
      collective->mutable_skinny()->set_area(step.skinny->area);
      collective->mutable_skinny()->set_scales_travel(step.skinny->scales_travel);
      collective->mutable_skinny()->set_most_ctas(static_cast<uint32_t>(step.skinny->most_ctas));
    }
    for (const Step& inner : step.expansion) EncodeStep(inner, collective->add_expansion());
  }
};

void EncodeStep(const Step& step, pb::Step* message) {
  message->set_lane(step.lane);
  for (uint32_t dep : step.deps) message->add_deps(dep);
  message->set_label(step.label);
  std::visit(Encoder{message}, step.work);
}

// Reads steps of one program; `where` names the step for messages.
class Decoder {
 public:
  Decoder(int world_size, int lanes) : world_size_(world_size), lanes_(lanes) {}

  Status Decode(const pb::Step& message, uint32_t index, bool nested, Step* step) {
    where_ = index;
    if (message.lane() >= static_cast<uint32_t>(lanes_)) return Bad("lane");
    step->lane = static_cast<uint16_t>(message.lane());
    step->label = message.label();
    for (uint32_t dep : message.deps()) {
      if (nested || dep >= index) return Bad("dependency");
      step->deps.push_back(dep);
    }
    switch (message.work_case()) {
      case pb::Step::kNop: step->work = NopStep{}; return Status::Ok();
      case pb::Step::kCopy: {
        CopyStep copy;
        TANDEM_RETURN_IF_ERROR(DecodeView(message.copy().src(), &copy.src));
        TANDEM_RETURN_IF_ERROR(DecodeView(message.copy().dst(), &copy.dst));
        copy.copy_engine = message.copy().copy_engine();
        step->work = std::move(copy);
        return Status::Ok();
      }
      case pb::Step::kSignal: {
        SignalStep signal;
        TANDEM_RETURN_IF_ERROR(Rank(message.signal().to_rank(), &signal.to_rank));
        TANDEM_RETURN_IF_ERROR(Index(message.signal().index(), &signal.index));
        step->work = signal;
        return Status::Ok();
      }
      case pb::Step::kWait: {
        WaitStep wait;
        TANDEM_RETURN_IF_ERROR(Rank(message.wait().from_rank(), &wait.from_rank));
        TANDEM_RETURN_IF_ERROR(Index(message.wait().index(), &wait.index));
        step->work = wait;
        return Status::Ok();
      }
      case pb::Step::kMatmul: {
        MatmulStep matmul;
        TANDEM_RETURN_IF_ERROR(DecodeMatmul(message.matmul(), &matmul));
        step->work = std::move(matmul);
        return Status::Ok();
      }
      case pb::Step::kReduce: return DecodeReduce(message.reduce(), step);
      case pb::Step::kNorm: return DecodeNorm(message.norm(), step);
      case pb::Step::kTransferGroup: return DecodeTransferGroup(message.transfer_group(), step);
      case pb::Step::kNccl: return DecodeNccl(message.nccl(), step);
      case pb::Step::kCollective:
        if (nested) return Bad("nested collective");
        return DecodeCollective(message.collective(), index, step);
      case pb::Step::WORK_NOT_SET: break;
    }
    return Bad("kind");
  }

 private:
  Status Bad(const char* what) const {
    return InvalidArgument("step " + std::to_string(where_) + " of the program has a bad " + what);
  }
  Status Rank(uint32_t value, uint8_t* rank) const {
    if (value >= static_cast<uint32_t>(world_size_)) return Bad("rank");
    *rank = static_cast<uint8_t>(value);
    return Status::Ok();
  }
  Status Index(uint32_t value, uint16_t* index) const {
    if (value >= static_cast<uint32_t>(kSignalsPerWriter)) return Bad("signal index");
    *index = static_cast<uint16_t>(value);
    return Status::Ok();
  }
  Status DecodeReduceOp(uint32_t value, ReduceOp* op) const {
    if (value > static_cast<uint32_t>(ReduceOp::kAvg)) return Bad("reduction");
    *op = static_cast<ReduceOp>(value);
    return Status::Ok();
  }

  Status DecodeView(const pb::View& message, View* view) const {
    if (message.ref().space() > static_cast<uint32_t>(Space::kBulk)) return Bad("space");
    if (message.ref().slot() > 0xffff) return Bad("slot");
    if (message.dtype() > 0xff || !IsValid(static_cast<DType>(message.dtype()))) return Bad("dtype");
    if (message.extent_size() != message.stride_size() || message.extent_size() > kMaxViewDimensions) {
      return Bad("number of dimensions");
    }
    view->ref.space = static_cast<Space>(message.ref().space());
    TANDEM_RETURN_IF_ERROR(Rank(message.ref().rank(), &view->ref.rank));
    view->ref.slot = static_cast<uint16_t>(message.ref().slot());
    view->ref.offset = message.ref().offset();
    view->dtype = static_cast<DType>(message.dtype());
    view->extent.assign(message.extent().begin(), message.extent().end());
    view->stride.assign(message.stride().begin(), message.stride().end());
    for (int64_t extent : view->extent) {
      if (extent < 0) return Bad("extent");
    }
    return Status::Ok();
  }

  Status DecodeMatmul(const pb::Matmul& message, MatmulStep* out) const {
    MatmulStep& matmul = *out;
    TANDEM_RETURN_IF_ERROR(DecodeView(message.a(), &matmul.a));
    TANDEM_RETURN_IF_ERROR(DecodeView(message.b(), &matmul.b));
    TANDEM_RETURN_IF_ERROR(DecodeView(message.c(), &matmul.c));
    matmul.alpha = message.alpha();
    matmul.accumulate = message.accumulate();
    matmul.has_scale_a = message.has_scale_a();
    matmul.has_scale_b = message.has_scale_b();
    matmul.has_bias = message.has_bias();
    matmul.has_result_scale = message.has_result_scale();
    matmul.has_chunk_signals = message.has_chunk_signals();
    if (matmul.has_scale_a) TANDEM_RETURN_IF_ERROR(DecodeView(message.scale_a(), &matmul.scale_a));
    if (matmul.has_scale_b) TANDEM_RETURN_IF_ERROR(DecodeView(message.scale_b(), &matmul.scale_b));
    if (matmul.has_bias) TANDEM_RETURN_IF_ERROR(DecodeView(message.bias(), &matmul.bias));
    if (matmul.has_result_scale)
      TANDEM_RETURN_IF_ERROR(DecodeView(message.result_scale(), &matmul.result_scale));
    if (matmul.has_chunk_signals)
      TANDEM_RETURN_IF_ERROR(DecodeView(message.chunk_signals(), &matmul.chunk_signals));
    matmul.block_scales = message.block_scales();
    matmul.first_column = message.first_column();
    if (matmul.first_column < 0 || matmul.first_column >= kScaleBlock) return Bad("first column");
    matmul.fast_accumulation = message.fast_accumulation();
    matmul.chunk_pivot = message.chunk_pivot();
    return Status::Ok();
  }

  Status DecodeReduce(const pb::Reduce& message, Step* step) const {
    ReduceStep reduce;
    reduce.sources.resize(static_cast<size_t>(message.sources_size()));
    for (int i = 0; i < message.sources_size(); ++i) {
      TANDEM_RETURN_IF_ERROR(DecodeView(message.sources(i), &reduce.sources[static_cast<size_t>(i)]));
    }
    TANDEM_RETURN_IF_ERROR(DecodeView(message.dst(), &reduce.dst));
    reduce.scale = message.scale();
    reduce.has_bias = message.has_bias();
    reduce.has_result_scale = message.has_result_scale();
    if (reduce.has_bias) TANDEM_RETURN_IF_ERROR(DecodeView(message.bias(), &reduce.bias));
    if (reduce.has_result_scale)
      TANDEM_RETURN_IF_ERROR(DecodeView(message.result_scale(), &reduce.result_scale));
    step->work = std::move(reduce);
    return Status::Ok();
  }

  Status DecodeNorm(const pb::Norm& message, Step* step) const {
    NormStep norm;
    TANDEM_RETURN_IF_ERROR(DecodeView(message.sum(), &norm.sum));
    TANDEM_RETURN_IF_ERROR(DecodeView(message.weight(), &norm.weight));
    TANDEM_RETURN_IF_ERROR(DecodeView(message.out(), &norm.out));
    norm.epsilon = message.epsilon();
    norm.has_residual = message.has_residual();
    if (norm.has_residual) {
      TANDEM_RETURN_IF_ERROR(DecodeView(message.residual(), &norm.residual));
      TANDEM_RETURN_IF_ERROR(DecodeView(message.residual_out(), &norm.residual_out));
    }
    step->work = std::move(norm);
    return Status::Ok();
  }

  Status DecodeTransferGroup(const pb::TransferGroup& message, Step* step) const {
    TransferGroupStep group;
    for (const pb::TransferPart& from : message.parts()) {
      TransferPart part;
      part.send = from.send();
      TANDEM_RETURN_IF_ERROR(Rank(from.peer(), &part.peer));
      TANDEM_RETURN_IF_ERROR(Index(from.index(), &part.index));
      if (part.send) {
        TANDEM_RETURN_IF_ERROR(DecodeView(from.src(), &part.src));
        TANDEM_RETURN_IF_ERROR(DecodeView(from.dst(), &part.dst));
      }
      group.parts.push_back(std::move(part));
    }
    step->work = std::move(group);
    return Status::Ok();
  }

  Status DecodeNccl(const pb::Nccl& message, Step* step) const {
    NcclStep nccl;
    if (message.kind() > static_cast<uint32_t>(NcclKind::kBarrier)) return Bad("collective kind");
    nccl.kind = static_cast<NcclKind>(message.kind());
    TANDEM_RETURN_IF_ERROR(DecodeView(message.in(), &nccl.in));
    TANDEM_RETURN_IF_ERROR(DecodeView(message.out(), &nccl.out));
    TANDEM_RETURN_IF_ERROR(DecodeReduceOp(message.reduce_op(), &nccl.reduce_op));
    if (message.root() < 0 || message.root() >= world_size_) return Bad("root");
    nccl.root = message.root();
    step->work = std::move(nccl);
    return Status::Ok();
  }

  Status DecodeCollective(const pb::Collective& message, uint32_t index, Step* step) {
    CollectiveStep collective;
    collective.algorithm = static_cast<Algorithm>(message.algorithm());
    collective.op = static_cast<Op>(message.op());
    TANDEM_RETURN_IF_ERROR(DecodeView(message.in(), &collective.in));
    TANDEM_RETURN_IF_ERROR(DecodeView(message.out(), &collective.out));
    TANDEM_RETURN_IF_ERROR(DecodeReduceOp(message.reduce_op(), &collective.reduce_op));
    if (uint64_t{message.first_signal()} + message.signal_count() > kSignalsPerWriter)
      return Bad("signal range");
    collective.first_signal = static_cast<uint16_t>(message.first_signal());
    collective.signal_count = static_cast<uint16_t>(message.signal_count());
    const bool fused = collective.algorithm == Algorithm::kFused;
    const auto most_blocks = static_cast<uint32_t>(fused             ? kMaxFusedBlocks
                                                   : message.dense() ? kMaxDenseBlocks
                                                                     : kMaxKernelBlocks);
    if (message.blocks() > most_blocks) return Bad("number of blocks");
    collective.blocks = static_cast<uint16_t>(message.blocks());
    collective.shots = message.shots() == 2 ? 2 : 1;
    collective.dense = message.dense();
    if (message.has_skinny()) {
      SkinnyStep& skinny = collective.skinny.emplace();
      TANDEM_RETURN_IF_ERROR(DecodeMatmul(message.skinny().matmul(), &skinny.matmul));
      skinny.area = message.skinny().area();
      skinny.scales_travel = message.skinny().scales_travel();
      skinny.most_ctas = static_cast<int>(std::min<uint32_t>(message.skinny().most_ctas(), kSkinnyCtas));
    }
    for (const pb::Step& inner : message.expansion()) {
      Step decoded;
      TANDEM_RETURN_IF_ERROR(Decode(inner, index, true, &decoded));
      collective.expansion.push_back(std::move(decoded));
    }
    step->work = std::move(collective);
    return Status::Ok();
  }

  int world_size_;
  int lanes_;
  uint32_t where_ = 0;
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
  for (const Step& step : program.steps) EncodeStep(step, message->add_steps());
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
    TANDEM_RETURN_IF_ERROR(decoder.Decode(message.steps(i), static_cast<uint32_t>(i), false, &step));
    program.steps.push_back(std::move(step));
  }
  return program;
}

}  // namespace tandem::plan
