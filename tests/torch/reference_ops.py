"""References for the checks of torch.ops.tandem: the fallbacks on the CPU with gradients, random tensors, and comparisons."""

import torch
import torch.distributed as dist
from checks import DEVICE
from tandem.torch import _fallback
from torch.testing import assert_close

OPS = torch.ops.tandem
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
ROUGH = {**TOLERANCE, torch.float8_e4m3fn: 0.1}


class Reference:
    """The fallbacks on the CPU, for tensors of any device: gloo does not move all CUDA tensors."""

    def __getattr__(self, name):
        def call(*given):
            tensors = [one for value in given for one in (value if isinstance(value, list) else [value])]
            device = next(one.device for one in tensors if isinstance(one, torch.Tensor))
            return _moved(getattr(_fallback, name)(*_moved(given, "cpu")), device)

        return call


def _moved(value, device):
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return type(value)(_moved(one, device) for one in value) if isinstance(value, (list, tuple)) else value


reference = Reference()


def world():
    return dist.get_world_size()


def rank():
    return dist.get_rank()


def rand(*shape, dtype=torch.float32, same=False, seed=0):
    """A tensor of this rank's own, or the same on all ranks."""
    generator = torch.Generator().manual_seed(1000 * seed + (0 if same else 1 + rank()))
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def near(got, want, dtype=None):
    tolerance = ROUGH[dtype or got.dtype]
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    got, want = got.cpu(), want.cpu()
    assert_close(got, want, rtol=tolerance, atol=tolerance * max(1.0, want.abs().max().item() if want.numel() else 0.0))


def gradients(function, *tensors):
    """The gradients of a loss that weighs every element of the outputs differently."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    outputs = function(*leaves)
    loss = sum(
        (output * torch.linspace(0.5, 1.5, output.numel(), device=DEVICE).view(output.shape) * (1 + rank())).sum()
        for output in outputs
        if output is not None
    )
    loss.backward()
    return [leaf.grad for leaf in leaves]


def same_gradients(ours, theirs, *tensors):
    for got, want in zip(gradients(ours, *tensors), gradients(theirs, *tensors), strict=True):
        assert got is not None and want is not None
        near(got, want)


# The references are differentiable: torch's functional collectives have the same gradients.
def ref_gather(x, dim, name):
    return _Gather.apply(x, dim, name)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, name):
        ctx.dim, ctx.name = dim, name
        return reference.all_gather(x, dim % x.dim(), name)

    @staticmethod
    def backward(ctx, grad):
        return reference.reduce_scatter(grad, "sum", ctx.dim % grad.dim(), ctx.name), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, op, dim, name):
        ctx.op, ctx.dim, ctx.name = op, dim % x.dim(), name
        return reference.reduce_scatter(x, op, dim % x.dim(), name)

    @staticmethod
    def backward(ctx, grad):
        whole = reference.all_gather(grad, ctx.dim, ctx.name)
        return (whole if ctx.op == "sum" else whole / world()), None, None, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, op, name):
        ctx.op, ctx.name = op, name
        return reference.all_reduce(x, op, name)

    @staticmethod
    def backward(ctx, grad):
        return reference.all_reduce(grad, ctx.op, ctx.name), None, None
