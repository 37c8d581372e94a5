"""A rank that checks torch.ops.tandem under torch's modes: autocast and forward-mode gradients; and products without elements."""

import torch
from checks import CUDA, DEVICE, check, main
from reference_ops import OPS, near, rand, reference, world
from tandem.torch.nn import ColumnParallelLinears, RowParallelLinear
from torch import nn
from torch.autograd import forward_ad

BF16 = torch.bfloat16


def linear(inputs, outputs, seed):
    """Equal on all ranks."""
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs).to(DEVICE)


def trained(run, x, parameters):
    """The result, and the gradients of the input and the parameters."""
    for one in parameters:
        one.grad = None
    x = x.detach().clone().requires_grad_()
    out = run(x)
    out.float().square().sum().backward()
    return [out.detach(), x.grad, *(one.grad for one in parameters)]


@check
def test_modules_under_autocast(name):
    """Types are those of torch.nn.Linear, of results and of gradients, also for an input that is cast already."""
    column, row = linear(8, 4 * world(), 1), linear(4 * world(), 6, 2)
    up, down = ColumnParallelLinears([column]), RowParallelLinear(row)
    for x in (rand(2, world(), 8), rand(2, world(), 8).to(BF16)):
        with torch.autocast(DEVICE, BF16):
            for parallel, whole, given in (
                (lambda x: up(x)[0], column, x),
                (down, row, rand(2, world(), 4, dtype=x.dtype)),
            ):
                want = whole(rand(2, whole.in_features).to(x.dtype))
                parameters = [*(up if whole is column else down).parameters()]
                got = trained(parallel, given, parameters)
                assert got[0].dtype == want.dtype == BF16, (got[0].dtype, want.dtype)
                assert got[1].dtype == x.dtype, (got[1].dtype, x.dtype)
                assert all(one.dtype == torch.float32 for one in got[2:]), [one.dtype for one in got]
                with torch.no_grad():
                    again = parallel(given)
                assert again.dtype == BF16 and torch.equal(again, got[0])
            assert up(x)[0].dtype == up(x.float())[0].dtype == BF16
    try:  # without it, as torch.nn.Linear
        up(x)
        raise AssertionError("operands of two types")
    except ValueError as error:
        assert "bfloat16" in str(error), error


@check
def test_values_and_gradients_under_autocast(name):
    """Those of operands in autocast's type, in eager mode and compiled; types that autocast leaves alone stay."""
    a, b, bias = rand(2 * world(), 8), rand(8, 4, seed=1), rand(4, seed=2, same=True)

    def products(a, b, bias):
        return (
            OPS.all_gather_matmul(a, [b, b], 0, name, [bias, bias])[1][1],
            OPS.matmul_reduce_scatter(a, b, "sum", 0, name, bias),
            OPS.matmul_all_reduce(a, b, "sum", name, bias=bias),
        )

    def outcome(run, *given, cast):
        leaves = [one.detach().clone().requires_grad_() for one in given]
        with torch.autocast(DEVICE, BF16, enabled=cast):
            results = run(*(leaves if cast else [one.to(BF16) for one in leaves]))
        sum(one.float().sum() for one in results).backward()
        return [*(one.detach() for one in results), *(leaf.grad for leaf in leaves)]

    want = outcome(products, a, b, bias, cast=False)
    for run in (products, torch.compile(products, fullgraph=True, backend="aot_eager")):
        got = outcome(run, a, b, bias, cast=True)
        assert [one.dtype for one in got] == [BF16] * 3 + [torch.float32] * 3
        for one, other in zip(got, want, strict=True):
            near(one, other, BF16)
    with torch.autocast(DEVICE, BF16), torch.no_grad():
        assert OPS.all_reduce(a, "sum", name).dtype == torch.float32
        assert OPS.matmul_all_reduce(a.half(), b, "sum", name).dtype == BF16
        for kind in (torch.float32, BF16):  # the residual is written where it lies
            residual, weight = rand(2 * world(), 4, dtype=kind, seed=3), rand(4, seed=4, same=True)
            given = (a.to(BF16), b, residual, weight, 1e-5, name)
            assert OPS.matmul_all_reduce_rms_norm(*given).dtype == kind and residual.dtype == kind
        if not CUDA:
            signals = torch.ones(2, dtype=torch.int32)
            assert OPS.async_input_matmul(a, b, signals, 0, name).dtype == BF16


@check
def test_norms_under_autocast(name):
    """The result has the residual's type, as that of torch's norm has its input's. The sum and the weight are cast to it."""
    with torch.autocast(DEVICE, BF16):
        for kind in (torch.float32, BF16):
            for given in (torch.float32, BF16):
                x, residual = rand(2 * world(), 4, dtype=given), rand(2 * world(), 4, dtype=kind, seed=3, same=True)
                weight = rand(4, seed=4, same=True)
                total = residual.clone()
                got = OPS.all_reduce_rms_norm(x, total, weight, 1e-5, name)
                want = residual.float() + reference.all_reduce(x.float(), "sum", name)
                near(total, want.to(kind), BF16)
                near(got, torch.nn.functional.rms_norm(want, (4,), weight, 1e-5).to(kind), BF16)
                assert got.dtype == total.dtype == kind, (got.dtype, total.dtype)


@check
def test_collectives_under_autocast(name):
    """Values, results and gradients keep their types, as those of torch's own collectives."""
    for kind in (torch.float32, BF16):
        x = rand(2 * world(), 4, dtype=kind).requires_grad_()
        with torch.autocast(DEVICE, BF16):
            results = (
                OPS.all_reduce(x, "sum", name),
                OPS.all_gather(x, 0, name),
                OPS.reduce_scatter(x, "sum", 0, name),
                OPS.all_to_all(x, 0, name),
                OPS.broadcast(x, 0, name),
            )
        sum(one.float().sum() for one in results).backward()
        assert [one.dtype for one in (*results, x.grad)] == [kind] * 6


@check
def test_given_outputs_under_autocast(name):
    """They keep the operands' types, as torch.mm(..., out=...)."""
    a, b = rand(2 * world(), 8), rand(8, 4, seed=1)
    out = torch.empty(2 * world(), 4, device=DEVICE)
    with torch.autocast(DEVICE, BF16), torch.no_grad():
        OPS.matmul_all_reduce.out(a, b, "sum", name, out=out)
    near(out, reference.matmul_all_reduce(a, b, "sum", name, None))


@check
def test_forward_mode_gradients_raise(name):
    """A result without the tangent would count as a constant."""
    x, w = rand(2 * world(), 4), rand(4, 4, seed=1)
    residual, weight = rand(2 * world(), 4), rand(4, seed=2, same=True)
    calls = (
        lambda x: OPS.all_reduce(x, "sum", name),
        lambda x: OPS.all_gather_matmul(x, [w], 0, name)[1][0],
        lambda x: OPS.all_gather_matmul(w, [x.t() @ x], 0, name)[1][0],
        lambda x: OPS.matmul_reduce_scatter(x, w, "sum", 0, name),
        lambda x: OPS.matmul_reduce_scatter.default(x, w, "sum", 0, name),
        lambda x: OPS.all_reduce.out(x, "sum", name, out=torch.empty_like(residual)),
        lambda x: OPS.all_reduce_rms_norm(x, residual.clone(), weight, 1e-5, name),
    )

    def by_dual(call, needs):
        with forward_ad.dual_level():
            return call(forward_ad.make_dual(x.clone().requires_grad_(needs), torch.ones_like(x)))

    def by_transform(call, needs):
        return torch.func.jvp(call, (x.clone().requires_grad_(needs),), (torch.ones_like(x),))

    for call in calls:
        for run in (by_dual, by_transform):
            for needs in (False, True):
                try:
                    run(call, needs)
                except NotImplementedError as error:
                    assert "forward-mode" in str(error), error
                else:
                    raise AssertionError("a tangent got lost in silence")
    with forward_ad.dual_level():  # of an argument without one nothing gets lost
        near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))


@check
def test_products_without_a_contracted_element(name):
    """They are zeros, as torch's; the gradients have no elements."""
    rows = 2 * world()
    for shape in ((rows, 0), (2, rows, 0)):
        a, b, bias = torch.empty(shape, device=DEVICE), torch.empty(0, 8, device=DEVICE), rand(8, seed=1, same=True)
        zeros, dim = a @ b, len(shape) - 2
        for call, want in (
            (lambda a, b: OPS.matmul_all_reduce(a, b, "sum", name), zeros),
            (lambda a, b: OPS.matmul_all_reduce(a, b, "sum", name, bias), zeros + bias),
            (lambda a, b: OPS.matmul_reduce_scatter(a, b, "sum", dim, name), zeros.chunk(world(), dim)[0]),
            (lambda a, b: OPS.all_gather_matmul(a, [b], dim, name)[1][0], torch.cat([zeros] * world(), dim)),
        ):
            for _ in range(2):
                leaves = [a.clone().requires_grad_(), b.clone().requires_grad_()]
                got = call(*leaves)
                near(got.detach(), want)
                got.sum().backward()
                assert [leaf.grad.shape for leaf in leaves] == [a.shape, b.shape]
        residual, weight = rand(*zeros.shape, seed=2), rand(8, seed=3, same=True)
        total = residual.clone()
        got = OPS.matmul_all_reduce_rms_norm(a, b, total, weight, 1e-5, name)
        near(total, residual)
        near(got, torch.nn.functional.rms_norm(residual, (8,), weight, 1e-5))
        fp8, one = torch.float8_e4m3fn, torch.tensor(0.5, device=DEVICE)
        got = OPS.scaled_matmul_all_reduce(a.to(fp8), b.to(fp8), one, one, "sum", name, out_dtype=torch.float32)
        near(got, zeros)


@check
def test_averages_of_integers_are_refused(name):
    x = torch.ones(2 * world(), 4, dtype=torch.int32, device=DEVICE)
    for call in (
        lambda: OPS.all_reduce(x, "avg", name),
        lambda: OPS.reduce_scatter(x, "avg", 0, name),
        lambda: OPS.low_contention_reduce_scatter(x, "avg", name),
    ):
        try:
            call()
            raise AssertionError("an average of integers")
        except ValueError as error:
            assert "'avg'" in str(error) and "int32" in str(error), error


if __name__ == "__main__":
    main()
