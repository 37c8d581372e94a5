// File: step_fields.h
//
// The fields of everything that a rank program consists of, each listed once. ForEachField, ForEachView and
// the codec are made from these lists: a new field is declared, listed here, and given a number in
// proto/tandem/program/v1/program.proto.
//
// F(kind, name, …) is one field. VALUE: a number, an enumeration, a text, or a part with fields of its own,
// or several of them. FLAG: whether the view behind `has_` is there. READ, WRITE: a view, or several, with
// its name for people. MAY_READ, MAY_WRITE: a view that is there only if the flag named behind it is true.
#pragma once

#include <type_traits>
#include <vector>

#include "program/program.h"
#include "tandem/status.h"

#define TANDEM_REF_FIELDS(F) F(VALUE, space) F(VALUE, rank) F(VALUE, slot) F(VALUE, offset)
#define TANDEM_VIEW_FIELDS(F) F(VALUE, ref) F(VALUE, dtype) F(VALUE, extent) F(VALUE, stride)
#define TANDEM_NOP_FIELDS(F)
#define TANDEM_COPY_FIELDS(F) F(READ, src, "source") F(WRITE, dst, "destination") F(VALUE, copy_engine)
#define TANDEM_SIGNAL_FIELDS(F) F(VALUE, to_rank) F(VALUE, index)
#define TANDEM_WAIT_FIELDS(F) F(VALUE, from_rank) F(VALUE, index)
#define TANDEM_MATMUL_FIELDS(F)                                  \
  F(READ, a, "A")                                                \
  F(READ, b, "B")                                                \
  F(WRITE, c, "C")                                               \
  F(VALUE, alpha)                                                \
  F(VALUE, accumulate)                                           \
  F(FLAG, has_scale_a)                                           \
  F(FLAG, has_scale_b)                                           \
  F(FLAG, has_bias)                                              \
  F(FLAG, has_result_scale)                                      \
  F(MAY_READ, scale_a, "scale of A", has_scale_a)                \
  F(MAY_READ, scale_b, "scale of B", has_scale_b)                \
  F(VALUE, block_scales)                                         \
  F(VALUE, first_column)                                         \
  F(MAY_READ, bias, "bias", has_bias)                            \
  F(MAY_READ, result_scale, "result scale", has_result_scale)    \
  F(VALUE, fast_accumulation)                                    \
  F(FLAG, has_chunk_signals)                                     \
  F(MAY_READ, chunk_signals, "chunk signals", has_chunk_signals) \
  F(VALUE, chunk_pivot)                                          \
  F(VALUE, repeatable)                                           \
  F(VALUE, fixed_order)
#define TANDEM_REDUCE_FIELDS(F)       \
  F(READ, sources, "source")          \
  F(WRITE, dst, "destination")        \
  F(VALUE, reduce_op)                 \
  F(VALUE, scale)                     \
  F(FLAG, has_bias)                   \
  F(FLAG, has_result_scale)           \
  F(MAY_READ, bias, "bias", has_bias) \
  F(MAY_READ, result_scale, "result scale", has_result_scale)
#define TANDEM_NORM_FIELDS(F)                                 \
  F(READ, sum, "sum")                                         \
  F(READ, weight, "norm weight")                              \
  F(WRITE, out, "output")                                     \
  F(FLAG, has_residual)                                       \
  F(MAY_READ, residual, "residual", has_residual)             \
  F(MAY_WRITE, residual_out, "residual output", has_residual) \
  F(VALUE, epsilon)                                           \
  F(VALUE, fixed_order)                                       \
  F(VALUE, unrounded)                                         \
  F(VALUE, row_blocks)                                        \
  F(FLAG, has_quantized)                                      \
  F(FLAG, has_static_scale)                                   \
  F(FLAG, has_scales)                                         \
  F(MAY_WRITE, quantized, "quantized output", has_quantized)  \
  F(MAY_READ, static_scale, "static scale", has_static_scale) \
  F(MAY_WRITE, scales, "scale output", has_scales)
#define TANDEM_TRANSFER_PART_FIELDS(F) \
  F(VALUE, send)                       \
  F(VALUE, peer)                       \
  F(VALUE, index)                      \
  F(MAY_READ, src, "source", send)     \
  F(MAY_WRITE, dst, "destination", send)
#define TANDEM_TRANSFER_GROUP_FIELDS(F) F(VALUE, parts)
#define TANDEM_NCCL_FIELDS(F) \
  F(VALUE, kind) F(READ, in, "input") F(WRITE, out, "output") F(VALUE, reduce_op) F(VALUE, root)
#define TANDEM_SKINNY_FIELDS(F) F(VALUE, matmul) F(VALUE, area) F(VALUE, scales_travel) F(VALUE, most_ctas)
#define TANDEM_COLLECTIVE_FIELDS(F) \
  F(VALUE, algorithm)               \
  F(VALUE, op)                      \
  F(READ, in, "input")              \
  F(WRITE, out, "output")           \
  F(VALUE, reduce_op)               \
  F(VALUE, first_signal)            \
  F(VALUE, signal_count)            \
  F(VALUE, blocks)                  \
  F(VALUE, shots)                   \
  F(VALUE, dense)                   \
  F(VALUE, skinny)                  \
  F(VALUE, expansion)
#define TANDEM_STEP_FIELDS(F) F(VALUE, lane) F(VALUE, deps) F(VALUE, work) F(VALUE, label)
#define TANDEM_PROGRAM_FIELDS(F) \
  F(VALUE, rank)                 \
  F(VALUE, world_size)           \
  F(VALUE, lanes)                \
  F(VALUE, workspace_bytes)      \
  F(VALUE, bulk_bytes)           \
  F(VALUE, signal_count)         \
  F(VALUE, steps)

// The kinds of Step::work, in the variant's order: W(type, field of the message Step, name of that case).
#define TANDEM_STEP_WORKS(W)                          \
  W(NopStep, nop, Nop)                                \
  W(CopyStep, copy, Copy)                             \
  W(SignalStep, signal, Signal)                       \
  W(WaitStep, wait, Wait)                             \
  W(MatmulStep, matmul, Matmul)                       \
  W(ReduceStep, reduce, Reduce)                       \
  W(TransferGroupStep, transfer_group, TransferGroup) \
  W(NcclStep, nccl, Nccl)                             \
  W(CollectiveStep, collective, Collective)           \
  W(NormStep, norm, Norm)

namespace tandem::plan {

enum class ViewUse : uint8_t { kRead, kWrite };

namespace internal {

template <class Value>
inline constexpr bool kIsView = false;
template <class Place>
inline constexpr bool kIsView<StridedView<Place>> = true;

// One view, or each of several.
template <class F, class First, class... Rest>
Status VisitView(F& f, const char* name, ViewUse use, First& first, Rest&... rest) {
  if constexpr (kIsView<std::remove_cv_t<First>>) {
    return f(name, use, first, rest...);
  } else {
    for (size_t i = 0; i < first.size(); ++i) TANDEM_RETURN_IF_ERROR(f(name, use, first[i], rest[i]...));
    return Status::Ok();
  }
}

#define TANDEM_FIELD(kind, name, ...) f(#name, first.name, rest.name...);
#define TANDEM_VIEW(kind, ...) TANDEM_VIEW_##kind(__VA_ARGS__)
#define TANDEM_VIEW_VALUE(name)
#define TANDEM_VIEW_FLAG(name)
#define TANDEM_VIEW_READ(name, text) \
  TANDEM_RETURN_IF_ERROR(VisitView(f, text, ViewUse::kRead, first.name, rest.name...));
#define TANDEM_VIEW_WRITE(name, text) \
  TANDEM_RETURN_IF_ERROR(VisitView(f, text, ViewUse::kWrite, first.name, rest.name...));
#define TANDEM_VIEW_MAY_READ(name, text, flag) \
  if (first.flag) TANDEM_VIEW_READ(name, text)
#define TANDEM_VIEW_MAY_WRITE(name, text, flag) \
  if (first.flag) TANDEM_VIEW_WRITE(name, text)
#define TANDEM_VISITS(Type, LIST, ...)                                            \
  template <__VA_ARGS__ class F, class First, class... Rest>                      \
  void Fields(const Type*, [[maybe_unused]] F& f, [[maybe_unused]] First& first,  \
              [[maybe_unused]] Rest&... rest) {                                   \
    LIST(TANDEM_FIELD)                                                            \
  }                                                                               \
  template <__VA_ARGS__ class F, class First, class... Rest>                      \
  Status Views(const Type*, [[maybe_unused]] F& f, [[maybe_unused]] First& first, \
               [[maybe_unused]] Rest&... rest) {                                  \
    LIST(TANDEM_VIEW)                                                             \
    return Status::Ok();                                                          \
  }
TANDEM_VISITS(Ref, TANDEM_REF_FIELDS)
TANDEM_VISITS(View, TANDEM_VIEW_FIELDS)
TANDEM_VISITS(NopStep, TANDEM_NOP_FIELDS)
TANDEM_VISITS(Copy<Place>, TANDEM_COPY_FIELDS, class Place, )
TANDEM_VISITS(SignalStep, TANDEM_SIGNAL_FIELDS)
TANDEM_VISITS(WaitStep, TANDEM_WAIT_FIELDS)
TANDEM_VISITS(Matmul<Place>, TANDEM_MATMUL_FIELDS, class Place, )
TANDEM_VISITS(Reduce<Place>, TANDEM_REDUCE_FIELDS, class Place, )
TANDEM_VISITS(TransferPart, TANDEM_TRANSFER_PART_FIELDS)
TANDEM_VISITS(TransferGroupStep, TANDEM_TRANSFER_GROUP_FIELDS)
TANDEM_VISITS(Nccl<Place>, TANDEM_NCCL_FIELDS, class Place, )
TANDEM_VISITS(SkinnyStep, TANDEM_SKINNY_FIELDS)
TANDEM_VISITS(CollectiveStep, TANDEM_COLLECTIVE_FIELDS)
TANDEM_VISITS(Norm<Place>, TANDEM_NORM_FIELDS, class Place, )
TANDEM_VISITS(Step, TANDEM_STEP_FIELDS)
TANDEM_VISITS(RankProgram, TANDEM_PROGRAM_FIELDS)
#undef TANDEM_VISITS
#undef TANDEM_VIEW_MAY_WRITE
#undef TANDEM_VIEW_MAY_READ
#undef TANDEM_VIEW_WRITE
#undef TANDEM_VIEW_READ
#undef TANDEM_VIEW_FLAG
#undef TANDEM_VIEW_VALUE
#undef TANDEM_VIEW
#undef TANDEM_FIELD

}  // namespace internal

// Calls f(name, field…) for each field of `first`, in the order of its list. With `rest`, parts of the same
// kind, the call has that field of each of them. Parts may be constant, and steps may differ in Place. Views
// that are not there are fields like others; numbers within views and parts need a call for these.
template <class F, class First, class... Rest>
void ForEachField(F&& f, First& first, Rest&... rest) {
  internal::Fields(static_cast<const std::remove_cv_t<First>*>(nullptr), f, first, rest...);
}

// Calls f(name for people, use, view…) for each view that is there in `first`, a step's work, until a call
// returns an error, which it returns. `rest` as above, with as many views. Of a transfer group none: its
// parts have them. Of NCCL's both, whatever the root; see Nccl::Reads.
template <class F, class First, class... Rest>
Status ForEachView(F&& f, First& first, Rest&... rest) {
  return internal::Views(static_cast<const std::remove_cv_t<First>*>(nullptr), f, first, rest...);
}

}  // namespace tandem::plan
