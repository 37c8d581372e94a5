"""Defines the ops of torch.ops.tandem (_op_table.py). The kernels of the CPU and CUDA keys, the fake kernels and the gradients are
registered by the modules beside this one.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _native
from ._op_table import IN_PLACE_OPS, OPS, OpSchema
from ._private import call_of, forward_level, new_library, refuse_tangents, set_call

LIB: Any = new_library("tandem", "DEF")
TAGS = (torch.Tag.needs_fixed_stride_order, torch.Tag.pt2_compliant_tag)


def _define(name: str, schema: OpSchema) -> None:
    """The op's overloads. Those with a graph are what the compile pass emits: `graph` is the name of the graph's records, also
    where the graph comes from a cache."""
    arguments, into, outs, result, _ = schema
    star = ", " if "*, " in arguments else ", *, "
    LIB.define(f"{name}({arguments}) -> {result}", tags=TAGS)
    LIB.define(f"{name}.noted({arguments}{star}str graph) -> {result}", tags=TAGS)
    # Returning nothing lets torch 2.11 trace an explicit call of the overload, too.
    LIB.define(f"{name}.out({into}, *, {outs}) -> ()", tags=TAGS)
    LIB.define(f"{name}.noted_out({into}, *, str graph, {outs}) -> ()", tags=TAGS)


for _name, _schema in OPS.items():
    _define(_name, _schema)
for _name, _arguments in IN_PLACE_OPS.items():
    LIB.define(f"{_name}({_arguments}) -> ()", tags=TAGS)


def _without_tangents(operation: Any, name: str) -> Any:
    def call(*given: Any, **named: Any) -> Any:
        if forward_level._current_level >= 0:
            refuse_tangents(name, (*given, *named.values()))
        return operation(*given, **named)

    return call


def _hide_behind_kernels(name: str) -> None:
    """An op with kernels in C++ has one more, "_" before its name, for the calls that these hand to Python. Where Python's kernels
    serve alone, calls are only looked at for tangents."""
    operation = getattr(torch.ops.tandem, name)
    if _native.kernels is None:
        for one in (operation, *(getattr(operation, overload) for overload in operation.overloads())):
            set_call(one, _without_tangents(call_of(one), name))
        return
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
for _name in (*OPS, *IN_PLACE_OPS):
    _hide_behind_kernels(_name)
