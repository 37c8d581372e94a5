"""Schemas of torch.ops.tandem. Names and order of arguments are those of torch.ops.symm_mem.fused_* where these exist.

Tensor arguments are positional, since a formula for gradients takes no others. The kernels of the CPU and CUDA keys, the fake
kernels and the gradients are registered by the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from . import _native
from ._private import call_of, forward_level, new_library, refuse_tangents, set_call

LIB: Any = new_library("tandem", "DEF")
TAGS = (torch.Tag.needs_fixed_stride_order, torch.Tag.pt2_compliant_tag)

SINGLE = {
    "all_reduce": "Tensor input, str reduce_op, str group_name",
    "all_gather": "Tensor input, int gather_dim, str group_name",
    "reduce_scatter": "Tensor input, str reduce_op, int scatter_dim, str group_name",
    "all_to_all": "Tensor input, int dim, str group_name",
    "broadcast": "Tensor input, int root, str group_name",
    "low_contention_all_gather": "Tensor input, str group_name",
    "low_contention_reduce_scatter": "Tensor input, str reduce_op, str group_name",
    "async_input_matmul": "Tensor a, Tensor b, Tensor a_chunk_signals, int a_chunk_pivot, str group_name",
    "matmul_reduce_scatter": "Tensor A, Tensor B, str reduce_op, int scatter_dim, str group_name, Tensor? bias=None",
    "matmul_all_reduce": "Tensor A, Tensor B, str reduce_op, str group_name, Tensor? bias=None",
    "all_reduce_rms_norm": "Tensor input, Tensor(a!) residual, Tensor weight, float epsilon, str group_name",
    "matmul_all_reduce_rms_norm": "Tensor A, Tensor B, Tensor(a!) residual, Tensor weight, float epsilon, str group_name, "
    "Tensor? bias=None",
}
SEVERAL = {
    "all_gather_matmul": "(Tensor A, Tensor[] Bs, int gather_dim, str group_name, Tensor[]? biases=None, *, bool return_A=True) "
    "-> (Tensor?, Tensor[])",
}
# gathered: one tensor, or none where the gathered A is not wanted. Lists, since Inductor takes no optional tensor that is written.
SEVERAL_OUT = {
    "all_gather_matmul": (
        "Tensor A, Tensor[] Bs, int gather_dim, str group_name, Tensor[]? biases=None, *, ",
        "Tensor(a!)[] gathered, Tensor(b!)[] outs",
    ),
}

for _name, _arguments in SINGLE.items():
    _out = f"Tensor({'b' if '(a!)' in _arguments else 'a'}!) out"
    LIB.define(f"{_name}({_arguments}) -> Tensor", tags=TAGS)
    # Returning nothing lets torch 2.11 trace an explicit call of the overload, too.
    LIB.define(f"{_name}.out({_arguments}, *, {_out}) -> ()", tags=TAGS)
    # The compile pass emits these: `graph` is the name of the graph's records, also where the graph is from a cache.
    LIB.define(f"{_name}.noted({_arguments}, *, str graph) -> Tensor", tags=TAGS)
    LIB.define(f"{_name}.noted_out({_arguments}, *, str graph, {_out}) -> ()", tags=TAGS)
for _name, _signature in SEVERAL.items():
    LIB.define(_name + _signature, tags=TAGS)


def define_noted(name: str, signature: str) -> None:
    """The overload for the compile pass of an op with this signature: the same and the graph's name."""
    arguments, result = signature.rsplit(") -> ", 1)
    star = ", " if "*, " in arguments else ", *, "
    LIB.define(f"{name}.noted{arguments}{star}str graph) -> {result}", tags=TAGS)


for _name, _signature in SEVERAL.items():
    define_noted(_name, _signature)
for _name, (_arguments, _outs) in SEVERAL_OUT.items():
    LIB.define(f"{_name}.out({_arguments}{_outs}) -> ()", tags=TAGS)
    LIB.define(f"{_name}.noted_out({_arguments}str graph, {_outs}) -> ()", tags=TAGS)


def _without_tangents(operation: Any, name: str) -> Any:
    def call(*given: Any, **named: Any) -> Any:
        if forward_level._current_level >= 0:
            refuse_tangents(name, (*given, *named.values()))
        return operation(*given, **named)

    return call


def hide_behind_kernels(names: Iterable[str]) -> None:
    """Of each op with kernels in C++ one more, "_" before its name, for the calls that these hand to Python. Where Python's kernels
    serve alone, calls are only looked at for tangents."""
    for name in names:
        operation = getattr(torch.ops.tandem, name)
        if _native.kernels is None:
            for one in (operation, *(getattr(operation, overload) for overload in operation.overloads())):
                set_call(one, _without_tangents(call_of(one), name))
            continue
        # torch tries the overloads one after the other, which takes longer than the call.
        set_call(operation, _native.guarded(call_of(operation.default), call_of(operation), name))
        for overload in operation.overloads():
            one = getattr(operation, overload)
            # A kernel in C++ cannot get results of two types from torch 2.11: they come in one list.
            arguments, result = str(one._schema).removeprefix("tandem::").rsplit(" -> ", 1)
            LIB.define(f"_{arguments} -> {'Tensor[]' if result.startswith('(Tensor') else result}")
            set_call(one, _native.guarded(call_of(one), name=name if overload == "default" else ""))


if _native.kernels is not None:
    LIB.define("_wait(int plan) -> ()")
hide_behind_kernels((*SINGLE, *SEVERAL))
