"""Ops under torch.autocast: products, as those of torch.nn.Linear, take their operands in autocast's type.

What is added to a residual takes that one's type, as does its norm's weight. Scaled products and plain collectives keep their
operands' types, as torch's own do. So do overloads that write a given output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._op_table import OPS
from ._private import below_autocast
from ._schemas import LIB

Tensor = torch.Tensor


def _cast(value: Any, device: str, dtype: torch.dtype) -> Any:
    """The argument in this type, where autocast would cast it: floating-point tensors of the device but those of fp64."""
    if isinstance(value, (list, tuple)):
        return [_cast(one, device, dtype) for one in value]
    if not isinstance(value, Tensor) or value.device.type != device:
        return value
    return value.to(dtype) if value.dtype.is_floating_point and value.dtype != torch.float64 else value


def _kernel(name: str, device: str) -> Callable[..., Any]:
    operation = getattr(torch.ops.tandem, name)
    arguments = [argument.name for argument in operation.default._schema.arguments]

    def kernel(*given: Any, **named: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        residual = dict(zip(arguments, given, strict=False)).get("residual", named.get("residual"))
        if residual is not None:  # written in place, so that its type is the result's
            dtype = residual.dtype
        with below_autocast():
            return operation(*_cast(given, device, dtype), **{key: _cast(value, device, dtype) for key, value in named.items()})

    return kernel


for _name, _schema in OPS.items():
    for _device in ("cpu", "cuda") if _schema.autocast else ():
        LIB.impl(_name, _kernel(_name, _device), f"Autocast{_device.upper()}")
