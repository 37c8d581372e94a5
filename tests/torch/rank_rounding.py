"""A rank that checks what norms behind a residual are computed from: ops, the compile pass and what torch runs instead."""

import itertools
import warnings

import tandem.torch
import torch
from checks import check, configured, main
from reference_ops import OPS, rand
from tandem.torch import _fallback
from torch.distributed import _functional_collectives as funcol
from torch.testing import assert_close

EPSILON = 1e-5
ROUNDINGS = ("once", "model")
TYPES = (torch.bfloat16, torch.float16)


def operands(dtype):
    x, residual = rand(12, 64, dtype=dtype), rand(12, 64, dtype=dtype, seed=3, same=True)
    return x, residual, rand(64, dtype=dtype, seed=4, same=True)


def check_values(name, rounding, dtype):
    """Checks an op's results against its own sum. Returns the result, and its error against a norm of the sum in f64."""
    x, residual, weight = operands(dtype)
    exact = OPS.all_reduce(x, "sum", name).double() + residual.double()
    got = OPS.all_reduce_rms_norm(x, residual, weight, EPSILON, name)
    assert torch.equal(residual, exact.to(dtype)), (rounding, dtype)
    of = residual.double() if rounding == "model" else exact
    assert_close(
        got.double(), _fallback._normed(of, weight.double(), EPSILON), rtol=0.51 * torch.finfo(dtype).eps, atol=1e-7
    )
    want = _fallback._normed(exact, weight.double(), EPSILON)
    return got, ((got.double() - want).norm() / want.norm()).item()


def check_all(name):
    """The results of both roundings, by type."""
    results = {}
    for dtype in TYPES:
        errors = {}
        for rounding in ROUNDINGS:
            with configured(name, rounding=rounding):
                results[rounding, dtype], errors[rounding] = check_values(name, rounding, dtype)
        assert errors["once"] < 0.85 * errors["model"], errors
    return results


@check
def test_values(name):
    known = None
    for placement, families in itertools.product(("engine", "client"), ("none", "collectives")):
        with configured(name, placement=placement, families=families):
            results = check_all(name)
        known = known or results
        for key, got in results.items():
            assert torch.equal(got, known[key]), (key, placement, families)


@check
def test_plans_report_it(name):
    x, residual, weight = operands(torch.bfloat16)
    for rounding in ROUNDINGS:
        with configured(name, rounding=rounding):
            OPS.all_reduce(x, "sum", name)
            OPS.all_reduce_rms_norm(x, residual, weight, EPSILON, name)
            reported = {info["rounding"] for info in tandem.torch.attach(name).plans.infos()}
            assert reported == {"", rounding}, reported
    tandem.torch.detach(name)
    tandem.torch.attach(name, rounding="model")
    OPS.all_reduce_rms_norm(x, residual, weight, EPSILON, name)
    assert [info["rounding"] for info in tandem.torch.attach(name).plans.infos()] == ["model"]
    tandem.torch.detach(name)
    try:
        tandem.torch.configure(rounding="always")
        raise AssertionError("a wrong rounding was taken")
    except ValueError as error:
        assert "rounding" in str(error)


@check
def test_the_compile_pass(name):
    group = torch.distributed.group.WORLD

    def step(x, residual, weight):
        hidden = funcol.all_reduce(x, "sum", group) + residual
        return torch.nn.functional.rms_norm(hidden, weight.shape, weight, EPSILON), hidden

    for rounding in ROUNDINGS:
        torch._dynamo.reset()
        x, residual, weight = operands(torch.bfloat16)
        with configured(name, rounding=rounding), torch.no_grad(), tandem.torch.compile_config():
            normed, hidden = torch.compile(step)(x, residual, weight)
            assert "all_reduce_rms_norm" in str(tandem.torch.explain_graph()[-1]), tandem.torch.explain_graph()
            want = OPS.all_reduce_rms_norm(x, residual, weight, EPSILON, name)
        assert torch.equal(normed, want) and torch.equal(hidden, residual), rounding


@check
def test_a_product(name):
    a, b, residual = (
        rand(12, 32, dtype=torch.bfloat16),
        rand(32, 64, seed=1).bfloat16(),
        rand(12, 64, seed=3, same=True).bfloat16(),
    )
    weight = rand(64, dtype=torch.bfloat16, seed=4, same=True)
    exact = OPS.matmul_all_reduce(a, b, "sum", name).double() + residual.double()
    step = torch.finfo(torch.bfloat16).eps
    for rounding in ROUNDINGS:
        with configured(name, rounding=rounding):
            total = residual.clone()
            got = OPS.matmul_all_reduce_rms_norm(a, b, total, weight, EPSILON, name)
        assert torch.equal(total, exact.to(total.dtype)), rounding
        of = total.double() if rounding == "model" else exact
        assert_close(got.double(), _fallback._normed(of, weight.double(), EPSILON), rtol=0.51 * step, atol=1e-7)


@check
def test_what_runs_without_tandem(name):
    with configured(name, runtime_dir="/nonexistent"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_all(name)
        assert tandem.torch.attach(name).reason


if __name__ == "__main__":
    main()
