"""A rank that compiles sums with a residual and an RMSNorm behind them, in every form that models write."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks import DEVICE, SHARED_GPUS, check, main
from rank_pass import Compiler
from reference_ops import near, rand, world
from torch.distributed import _functional_collectives as funcol

EPSILON = 1e-5
PLAIN, PRODUCT = "all_reduce_rms_norm", "matmul_all_reduce_rms_norm"


def summed(x, op="sum"):
    return funcol.all_reduce(x, op, dist.group.WORLD)


def by_torch(h, w):
    return F.rms_norm(h, w.shape, w, EPSILON)


def by_torch_with_its_epsilon(h, w):
    return F.rms_norm(h, w.shape, w)


def by_hugging_face(h, w):
    x = h.to(torch.float32)
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)
    return w * x.to(h.dtype)


def by_meta(h, w):
    x = h.float()
    return (x * torch.rsqrt(torch.mean(x * x, dim=-1, keepdim=True) + EPSILON)).type_as(h) * w


def weighed_in_fp32(h, w):
    x = h.float()
    return (torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * x * w.float()).to(h.dtype)


def by_a_quotient(h, w):
    x = h.float()
    return (w * (x / torch.sqrt((x**2).mean(-1, True) + EPSILON))).to(h.dtype)


def by_powers(h, w):
    x = h.float()
    return (x * torch.pow(x.pow(2).mean(-1, True) + EPSILON, -0.5)).to(h.dtype) * w.view(1, -1)


def by_a_reciprocal(h, w):
    x = h.float()
    return w * (x * (x * x).mean(-1, True).add(EPSILON).sqrt().reciprocal()).to(h.dtype)


def over_rows(h, w):
    """Of the rows alone, whatever dimensions they have."""
    return by_meta(h.flatten(0, -2), w).view(h.shape)


def without_epsilon(h, w):
    x = h.float()
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))).to(h.dtype)


NORMS = (
    by_torch,
    by_torch_with_its_epsilon,
    by_hugging_face,
    by_meta,
    weighed_in_fp32,
    by_a_quotient,
    by_powers,
    by_a_reciprocal,
    over_rows,
    without_epsilon,
)


def compared(function, *tensors, dynamic=None, eager=None):
    """The compiler of the function, which gives what it gives in eager mode, and writes none of its inputs."""
    torch._dynamo.reset()
    compiler = Compiler()
    given = [one.clone() for one in tensors]
    with torch.no_grad():
        want = (eager or function)(*(one.cpu() for one in tensors))
        got = torch.compile(function, backend=compiler, fullgraph=True, dynamic=dynamic)(*given)
    for one, other in zip(got, want, strict=True):
        near(one.cpu(), other)
    for one, other in zip(given, tensors, strict=True):
        assert torch.equal(one.float(), other.float()), "an input was written"
    return compiler


def operands(*shape, dtype=torch.float32, columns=6):
    """Operands for a sum of this shape: the input, the product's factors, residual and weight."""
    x, a, b = rand(*shape), rand(*shape[:-1], columns, seed=1), rand(columns, shape[-1], seed=2)
    residual, weight = rand(*shape, seed=3, same=True), rand(shape[-1], seed=4, same=True)
    return [one.to(dtype) for one in (x, a, b, residual, weight)]


@check
def test_every_form(name):
    """With and without a product, the residual on either side; the new residual goes on."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for i, norm in enumerate(NORMS):

            def function(x, a, b, residual, weight):
                first = residual + summed(a @ b)
                second = summed(x) + torch.relu(norm(first, weight))
                return first, norm(second, weight), second * 2, first.float().sum(-1)

            compiler = compared(function, *operands(*((2, 3, 8), (5, 8))[i % 2], dtype=dtype))
            assert compiler.fused() == [PLAIN, PRODUCT], (norm, [str(record) for record in compiler.records])


@check
def test_views_between(name):
    """Collectives of rows, of parts of rows, and of one dimension."""

    def function(x, a, b, residual, weight):
        first = residual + summed(a.flatten(0, 1) @ b).view(residual.shape)
        second = first + summed(x.view(2, 3, 2, 4)).flatten(2)
        third = second.view(-1, 8) + summed(x).view(-1, 8)
        return by_torch(first, weight), by_meta(second, weight), by_hugging_face(third, weight), third

    compiler = compared(function, *operands(2, 3, 8))
    assert compiler.fused() == [PLAIN, PLAIN, PRODUCT], [str(record) for record in compiler.records]

    def vector(x, a, b, residual, weight):
        return (by_torch(residual[0, 0] + summed(x[0, 0]), weight),)

    compiler = compared(vector, *operands(2, 3, 8))
    assert compiler.fused() == [PLAIN], [str(record) for record in compiler.records]


@check
def test_sums_that_are_waited_for_again(name):
    """As in a program that waits for what funcol returns, which torch has waited for."""

    def function(x, a, b, residual, weight):
        first = residual + funcol.wait_tensor(summed(a @ b))
        return first, by_torch(first, weight), funcol.wait_tensor(funcol.wait_tensor(summed(x)))

    compiler = compared(function, *operands(4, 8))
    assert compiler.fused() == ["all_reduce", PRODUCT], [str(record) for record in compiler.records]


@check
def test_all_reduces_of_any_size(name):
    def function(x, a, b, residual, weight):
        h = residual + summed(x * 2)
        return h, by_torch(h, weight)

    compiler = compared(function, *operands(300, 512))  # too large to be fused without a norm
    assert compiler.fused() == [PLAIN], [str(record) for record in compiler.records]


@check
def test_other_all_reduces(name):
    """In place, of symm_mem, with each rank's part of a bias, and of a product that has other users."""

    def function(x, a, b, residual, weight):
        y = a @ b
        dist.all_reduce(y)
        first = residual + y
        second = first + torch.ops.symm_mem.one_shot_all_reduce(a @ b, "sum", name)
        third = second + torch.ops.symm_mem.one_shot_all_reduce(x, "sum", name)
        fourth = third + summed(torch.addmm(weight / world(), a, b))
        own = torch.addmm(weight, a, b)
        fifth = fourth + summed(own)
        return [by_torch(one, weight) for one in (first, second, third, fourth, fifth)] + [own]

    def eager(x, a, b, residual, weight):
        first = residual + summed(a @ b)
        second = first + summed(a @ b)
        third = second + summed(x)
        fourth = third + summed(a @ b) + weight
        own = torch.addmm(weight, a, b)
        fifth = fourth + summed(own)
        return [by_torch(one, weight) for one in (first, second, third, fourth, fifth)] + [own]

    compiler = compared(function, *operands(4, 8), eager=eager)
    assert compiler.fused() == [PLAIN, PLAIN, PLAIN, PRODUCT, PRODUCT], [str(one) for one in compiler.records]


def two_results(norm):
    """A function with this norm behind its product's sum."""

    def function(x, a, b, residual, weight):
        h = residual + summed(a @ b)
        return h, norm(h, weight)

    return function


def over_the_first(h, w):
    return h * torch.rsqrt(h.pow(2).mean(0, keepdim=True) + EPSILON) * w


def over_all(h, w):
    return h * torch.rsqrt(h.pow(2).mean() + EPSILON) * w


def by_a_tensor(h, w):
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + w[:1].abs()) * w


def without_weight(h, w):
    return torch.relu(h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPSILON))


def by_rows(h, w):
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPSILON) * w[: h.shape[0], None]


def by_two_means(h, w):
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + h.mean(-1, keepdim=True).abs()) * w


def by_itself(h, w):
    return by_meta(h, w * h[0])


def of_another(h, w):
    return (w.view(1, -1) + h) * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPSILON) * w


@check
def test_what_has_no_norm_fused_has_its_reason(name):
    def with_factors(x, a, b, residual, weight):
        h = residual + summed(a @ b)
        factor = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPSILON)
        return h * factor * weight, factor

    def with_squares(x, a, b, residual, weight):
        h = residual + summed(a @ b)
        squares = h.pow(2)
        return h * torch.rsqrt(squares.mean(-1, keepdim=True) + EPSILON) * weight, squares

    def factors_alone(x, a, b, residual, weight):
        h = residual + summed(a @ b)
        return h * weight, torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPSILON)

    def with_the_sum(x, a, b, residual, weight):
        y = summed(a @ b)
        return by_meta(residual + y, weight), torch.relu(y)

    def doubled(x, a, b, residual, weight):
        y = summed(a @ b)
        return (by_meta(y + y, weight),)

    def scaled(x, a, b, residual, weight):
        h = torch.add(residual, summed(a @ b), alpha=2)
        return (by_meta(h, weight),)

    def averaged(x, a, b, residual, weight):
        return (by_meta(residual + summed(a @ b, "avg"), weight),)

    def averaged_in_eager_mode(x, a, b, residual, weight):
        return (by_meta(residual + summed(a @ b) / world(), weight),)

    def broadcast(x, a, b, residual, weight):
        return (by_meta(residual[0] + summed(a @ b), weight),)

    def widened(x, a, b, residual, weight):
        return (by_meta(residual[:, None] + summed(a @ b), weight),)

    def numbered(x, a, b, residual, weight):
        return (by_meta(1.5 + summed(a @ b), weight),)

    def of_fp32(x, a, b, residual, weight):
        return (by_meta(residual.float() + summed(a @ b), weight.float()),)

    def widened_first(x, a, b, residual, weight):
        return (by_meta(residual.float() + summed(a @ b).float(), weight.float()),)

    def weighed_by_fp32(x, a, b, residual, weight):
        return (by_hugging_face(residual + summed(a @ b), weight.float() * 2),)

    half = operands(4, 8, dtype=torch.bfloat16)
    for function, given, reason, eager in (
        (with_factors, None, "used outside it", None),
        (with_squares, None, "used outside it", None),
        (factors_alone, None, "no RMSNorm that the pass knows", None),
        (with_the_sum, None, "several uses", None),
        (doubled, None, "depends on the sum", None),
        (scaled, None, "no residual is added", None),
        (averaged, None, "does not reduce by avg", averaged_in_eager_mode),
        (broadcast, None, "each rank adds its own", None),
        (widened, None, "residual is of another shape", None),
        (numbered, None, "but a number", None),
        (of_fp32, half, "residual is of another type", None),
        (widened_first, half, "no residual is added", None),
        (weighed_by_fp32, half, "weight is of another type", None),
        (two_results(lambda h, w: F.layer_norm(h, w.shape, w)), None, "no RMSNorm follows", None),
        (two_results(lambda h, w: torch.relu(h) * w), None, "no RMSNorm follows", None),
        (two_results(over_the_first), None, "not over the last dimension", None),
        (two_results(over_all), None, "not over the last dimension", None),
        (two_results(by_a_tensor), None, "epsilon is not a number", None),
        (two_results(by_two_means), None, "epsilon is not a number", None),
        (two_results(without_weight), None, "has no weight", None),
        (two_results(by_rows), None, "no vector of a row's extent", None),
        (two_results(by_itself), None, "weight depends on the sum", None),
        (two_results(of_another), None, "no RMSNorm that the pass knows", None),
    ):
        compiler = compared(function, *(given or operands(4, 8)), eager=eager)
        (record,) = compiler.records
        assert record.fused_into == "matmul_all_reduce" and reason in record.reason, (function, str(record))
        assert record.reason.startswith("reduces a product") and "; no norm: " in record.reason, str(record)


@check
def test_fp8_products_have_no_norm(name):
    fp8, one = torch.float8_e4m3fn, torch.tensor(0.5, device=DEVICE)
    a, b = rand(16, 16).to(fp8), rand(16, 16, seed=1).to(fp8).t()
    residual, weight = rand(16, 16, seed=2, same=True), rand(16, seed=3, same=True)

    def function(a, b, one, residual, weight):
        h = residual + summed(torch._scaled_mm(a, b, one, one, out_dtype=torch.float32))
        return h, by_torch(h, weight)

    (record,) = compared(function, a, b, one, residual, weight).records
    assert record.fused_into == "scaled_matmul_all_reduce" and "without scales" in record.reason, str(record)


@check
def test_a_large_all_reduce_that_stays_says_both_reasons(name):
    if SHARED_GPUS:
        return  # what stays is torch's own, which has no backend for ranks that share a GPU
    compiler = compared(lambda x, w: (torch.relu(summed(x * 2) + w),), rand(512, 512), rand(512, 512, seed=1))
    assert compiler.fused() == [], compiler.records
    assert "no matrix product; no norm: no RMSNorm follows" in compiler.reasons()[0], compiler.reasons()


if __name__ == "__main__":
    main()
