"""The ops of torch.ops.tandem. Generated from client/torch/torch_ops.def, which has the reasons, by tests/source/tables.py."""

from __future__ import annotations

from typing import NamedTuple


class OpSchema(NamedTuple):
    """The schemas of one op's overloads, but for the arguments that the overloads add."""

    arguments: str
    into: str  # of the overloads that write `outs`
    outs: str
    result: str
    autocast: bool  # whether torch.autocast concerns the op


OPS = {
    "all_reduce": OpSchema(
        "Tensor input, str reduce_op, str group_name",
        "Tensor input, str reduce_op, str group_name",
        "Tensor(a!) out",
        "Tensor",
        False,
    ),
    "all_gather": OpSchema(
        "Tensor input, int gather_dim, str group_name",
        "Tensor input, int gather_dim, str group_name",
        "Tensor(a!) out",
        "Tensor",
        False,
    ),
    "reduce_scatter": OpSchema(
        "Tensor input, str reduce_op, int scatter_dim, str group_name",
        "Tensor input, str reduce_op, int scatter_dim, str group_name",
        "Tensor(a!) out",
        "Tensor",
        False,
    ),
    "all_to_all": OpSchema(
        "Tensor input, int dim, str group_name",
        "Tensor input, int dim, str group_name",
        "Tensor(a!) out",
        "Tensor",
        False,
    ),
    "broadcast": OpSchema(
        "Tensor input, int root, str group_name",
        "Tensor input, int root, str group_name",
        "Tensor(a!) out",
        "Tensor",
        False,
    ),
    "low_contention_all_gather": OpSchema(
        "Tensor input, str group_name",
        "Tensor input, str group_name",
        "Tensor(a!) out",
        "Tensor",
        False,
    ),
    "low_contention_reduce_scatter": OpSchema(
        "Tensor input, str reduce_op, str group_name",
        "Tensor input, str reduce_op, str group_name",
        "Tensor(a!) out",
        "Tensor",
        False,
    ),
    "async_input_matmul": OpSchema(
        "Tensor a, Tensor b, Tensor a_chunk_signals, int a_chunk_pivot, str group_name",
        "Tensor a, Tensor b, Tensor a_chunk_signals, int a_chunk_pivot, str group_name",
        "Tensor(a!) out",
        "Tensor",
        True,
    ),
    "matmul_reduce_scatter": OpSchema(
        "Tensor A, Tensor B, str reduce_op, int scatter_dim, str group_name, Tensor? bias=None",
        "Tensor A, Tensor B, str reduce_op, int scatter_dim, str group_name, Tensor? bias=None",
        "Tensor(a!) out",
        "Tensor",
        True,
    ),
    "matmul_all_reduce": OpSchema(
        "Tensor A, Tensor B, str reduce_op, str group_name, Tensor? bias=None",
        "Tensor A, Tensor B, str reduce_op, str group_name, Tensor? bias=None",
        "Tensor(a!) out",
        "Tensor",
        True,
    ),
    "all_reduce_rms_norm": OpSchema(
        "Tensor input, Tensor(a!) residual, Tensor weight, float epsilon, str group_name",
        "Tensor input, Tensor(a!) residual, Tensor weight, float epsilon, str group_name",
        "Tensor(b!) out",
        "Tensor",
        True,
    ),
    "matmul_all_reduce_rms_norm": OpSchema(
        "Tensor A, Tensor B, Tensor(a!) residual, Tensor weight, float epsilon, str group_name, Tensor? bias=None",
        "Tensor A, Tensor B, Tensor(a!) residual, Tensor weight, float epsilon, str group_name, Tensor? bias=None",
        "Tensor(b!) out",
        "Tensor",
        True,
    ),
    "all_reduce_rms_norm_static_fp8": OpSchema(
        "Tensor input, Tensor(a!) residual, Tensor weight, Tensor scale, float epsilon, str group_name",
        "Tensor input, Tensor(a!) residual, Tensor weight, Tensor scale, float epsilon, str group_name",
        "Tensor(b!) out",
        "Tensor",
        False,
    ),
    "all_reduce_rms_norm_dynamic_fp8": OpSchema(
        "Tensor input, Tensor(a!) residual, Tensor weight, Tensor(b!) scales, float epsilon, str group_name",
        "Tensor input, Tensor(a!) residual, Tensor weight, Tensor(b!) scales, float epsilon, str group_name",
        "Tensor(c!) out",
        "Tensor",
        False,
    ),
    "matmul_all_reduce_rms_norm_static_fp8": OpSchema(
        "Tensor A, Tensor B, Tensor(a!) residual, Tensor weight, Tensor scale, float epsilon, str group_name, Tensor? bias=None",
        "Tensor A, Tensor B, Tensor(a!) residual, Tensor weight, Tensor scale, float epsilon, str group_name, Tensor? bias=None",
        "Tensor(b!) out",
        "Tensor",
        False,
    ),
    "matmul_all_reduce_rms_norm_dynamic_fp8": OpSchema(
        "Tensor A, Tensor B, Tensor(a!) residual, Tensor weight, Tensor(b!) scales, float epsilon, str group_name, Tensor? "
        "bias=None",
        "Tensor A, Tensor B, Tensor(a!) residual, Tensor weight, Tensor(b!) scales, float epsilon, str group_name, Tensor? "
        "bias=None",
        "Tensor(c!) out",
        "Tensor",
        False,
    ),
    "all_gather_matmul": OpSchema(
        "Tensor A, Tensor[] Bs, int gather_dim, str group_name, Tensor[]? biases=None, *, bool return_A=True",
        "Tensor A, Tensor[] Bs, int gather_dim, str group_name, Tensor[]? biases=None",
        "Tensor(a!)[] gathered, Tensor(b!)[] outs",
        "(Tensor?, Tensor[])",
        True,
    ),
    "all_gather_scaled_matmul": OpSchema(
        "Tensor A, Tensor[] Bs, Tensor A_scale, Tensor[] B_scales, int gather_dim, str group_name, Tensor?[] biases, Tensor?[] "
        "result_scales, ScalarType?[] out_dtypes, bool[] use_fast_accum",
        "Tensor A, Tensor[] Bs, Tensor A_scale, Tensor[] B_scales, int gather_dim, str group_name, Tensor?[] biases, Tensor?[] "
        "result_scales, ScalarType?[] out_dtypes, bool[] use_fast_accum",
        "Tensor(a!) gathered, Tensor(b!)[] outs",
        "(Tensor, Tensor[])",
        False,
    ),
    "scaled_matmul_reduce_scatter": OpSchema(
        "Tensor A, Tensor B, Tensor A_scale, Tensor B_scale, str reduce_op, int orig_scatter_dim, int "
        "scatter_dim_after_maybe_reshape, str group_name, SymInt[]? output_shape, Tensor? bias=None, Tensor? result_scale=None, "
        "ScalarType? out_dtype=None, bool use_fast_accum=False",
        "Tensor A, Tensor B, Tensor A_scale, Tensor B_scale, str reduce_op, int orig_scatter_dim, int "
        "scatter_dim_after_maybe_reshape, str group_name, SymInt[]? output_shape, Tensor? bias=None, Tensor? result_scale=None, "
        "ScalarType? out_dtype=None, bool use_fast_accum=False",
        "Tensor(a!) out",
        "Tensor",
        False,
    ),
    "scaled_matmul_all_reduce": OpSchema(
        "Tensor A, Tensor B, Tensor A_scale, Tensor B_scale, str reduce_op, str group_name, Tensor? bias=None, Tensor? "
        "result_scale=None, ScalarType? out_dtype=None, bool use_fast_accum=False",
        "Tensor A, Tensor B, Tensor A_scale, Tensor B_scale, str reduce_op, str group_name, Tensor? bias=None, Tensor? "
        "result_scale=None, ScalarType? out_dtype=None, bool use_fast_accum=False",
        "Tensor(a!) out",
        "Tensor",
        False,
    ),
}

# Arguments of the ops that change their first argument and return nothing.
IN_PLACE_OPS = {
    "all_reduce_": "Tensor(a!) input, str reduce_op, str group_name",
    "broadcast_": "Tensor(a!) input, int root, str group_name",
}
