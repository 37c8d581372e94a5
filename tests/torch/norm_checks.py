"""What the checks of norms behind sums share."""

import torch
from reference_ops import rand
from tandem.torch import _native

EPSILON = 1e-5


def operands(*shape, columns=6, dtype=torch.float32):
    """Operands for a sum of this shape: the input and the product's factors, then residual, weights and bias, equal on all
    ranks."""
    x, a, b = (
        rand(*shape, dtype=dtype),
        rand(*shape[:-1], columns, dtype=dtype, seed=1),
        rand(columns, shape[-1], seed=2),
    )
    residual, weight = rand(*shape, dtype=dtype, seed=3, same=True), rand(shape[-1], dtype=dtype, seed=4, same=True)
    return x, a, b.to(dtype), residual, weight, rand(shape[-1], dtype=dtype, seed=5, same=True)


def launched_since(before, count):
    """Whether so many calls have gone past Python since the count `before`."""
    return _native.kernels is None or _native.counts().launched == before + count


def fails(kind, call, text):
    """Whether the call raises this kind of error, with this in its text."""
    try:
        call()
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"no {kind.__name__}: {text}")
