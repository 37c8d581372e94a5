"""A rank of vLLM whose eager models fuse a sum with the residual and the norm behind it, by the real package's functions.

As rank_vllm.py, whose groups these are. vLLM's norms run as modules of torch: the package's kernels are not there."""

import importlib
import os
import sys
import types

import tandem.vllm
import torch
import vllm
from checks import check, main
from rank_vllm import CLIENT, launches, parts, vllm_groups, warns, world
from tandem.torch._plans import NoPlanYet
from vllm import __version__

BEFORE = __version__.startswith("0.25")
# Names that vLLM's modules look up while they are imported. Its kernels' library has them, which is not there.
_kernels = torch.library.Library("_C", "FRAGMENT")
for kernel in (
    *("cutlass_scaled_mm", "fused_qk_norm_rope", "silu_and_mul_per_block_quant", "per_token_group_fp8_quant"),
    *("dynamic_scaled_fp8_quant", "fused_add_rms_norm", "rotary_embedding"),
    *(
        "fused_add_rms_norm_static_fp8_quant",
        "rms_norm",
        "rms_norm_dynamic_per_token_quant",
        "rms_norm_per_block_quant",
    ),
    *("rms_norm_static_fp8_quant", "silu_and_mul", "silu_and_mul_quant"),
):
    _kernels.define(f"{kernel}(Tensor x) -> Tensor")
# These run; as in vLLM's kernels but for the order of operations.
_kernels.define("static_scaled_fp8_quant(Tensor! result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()")
_kernels.define(
    "dynamic_per_token_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale, Tensor? scale_ub) -> ()"
)


def leave_out(name):
    """Keeps what a module or package of vLLM's would import from being needed: nothing here calls it."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [os.path.join(os.path.dirname(vllm.__file__), *name.split(".")[1:])]
    module.__getattr__ = lambda attribute: None


leave_out("vllm.v1.attention.ops.rocm_aiter_mla_sparse")
gemma = importlib.import_module("vllm.model_executor.layers.fused_allreduce_gemma_rms_norm")
if BEFORE:
    leave_out("vllm.models.deepseek_v32")
    leave_out("vllm.models.deepseek_v32.nvidia")
    plain = importlib.import_module("vllm.models.deepseek_v32.nvidia.fused_ops")
else:
    plain = importlib.import_module("vllm.models.common.ops.fused_allreduce_rms_norm")
EPSILON = 1e-5


def near(found, wanted, tolerance=1e-5):
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def function_of(is_gemma):
    return gemma.fused_allreduce_gemma_rms_norm if is_gemma else plain.fused_allreduce_rms_norm


class Norm(torch.nn.Module):
    """What the functions take of vLLM's norms, whose layers need a whole configuration of vLLM."""

    def __init__(self, columns, dtype, is_gemma, seed=7):
        super().__init__()
        made = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(torch.rand(columns, generator=made).to(dtype))
        self.variance_epsilon, self.is_gemma = EPSILON, is_gemma

    def forward(self, x, residual):
        total = x.float() + residual.float()
        factor = self.weight.detach().float() + self.is_gemma
        return (torch.nn.functional.rms_norm(total, (x.shape[-1],), eps=EPSILON) * factor).to(x.dtype), total.to(
            x.dtype
        )


def compare(group, is_gemma, rows, dtype, seed=0, columns=24):
    """The function's results on random tensors, beside those of torch."""
    tensors = parts(group, (rows, columns), seed, dtype)
    residual = parts(group, (rows, columns), seed + 50, dtype)[0]
    norm = Norm(columns, dtype, is_gemma)
    summed = torch.stack([one.float() for one in tensors]).sum(0)
    want = norm(summed, residual.float())
    given = residual.clone()
    got = function_of(is_gemma)(tensors[group.rank_in_group].clone(), given, norm)
    for one, other in zip(got, want, strict=True):
        near(one.float(), other, 1e-5 if dtype is torch.float32 else 3e-2)
    if is_gemma:  # vLLM's own never writes it
        assert torch.equal(given, residual)


def counted(group, reason=""):
    """Calls of fused norms with this outcome."""
    rows = [row for row in tandem.vllm.report().rows if (row.group, row.op) == (group.unique_name, "all_reduce_norm")]
    return sum(row.calls for row in rows if (reason in row.reason if reason else not row.reason))


@check
def test_sums_with_a_norm_are_taken(name):
    with vllm_groups(world()) as group:
        before = counted(group)
        for is_gemma in (False, True):
            for seed, rows in enumerate((1, 7, 64)):
                for dtype in (torch.float32, torch.bfloat16):
                    compare(group, is_gemma, rows, dtype, seed)
        assert counted(group) - before == 12, tandem.vllm.report()
        assert "all_reduce_norm" in str(tandem.vllm.report())


@check
def test_every_number_of_rows_shares_a_plan(name):
    if not CLIENT:  # families run on the ranks' own streams
        return
    with vllm_groups(world()) as group:
        plans = tandem.torch.attach(group.device_group).plans
        for rows in (*range(1, 20), 255, 256, 1, 100):
            compare(group, False, rows, torch.float32)
        assert plans._made == 1, plans._made


@check
def test_what_tandem_declines_is_vllms_own(name):
    """By types, and by the norm's form: then Tandem sums all the same."""
    with vllm_groups(world()) as group:
        before = counted(group)
        with warns("all_reduce_rms_norm of group"):
            compare(group, False, 3, torch.float64)
        assert counted(group, "float64") == 1 and counted(group) == before, tandem.vllm.report()
        x, residual = torch.ones(3, 8), torch.ones(3, 8)
        odd = Norm(8, torch.bfloat16, False)
        halves = Norm(8, torch.float32, False)
        halves.variance_size_override = 4
        for norm, reason in ((odd, "weight is torch.bfloat16"), (halves, "no weight")):
            launched, found = launches(), counted(group, reason)
            got = plain.fused_allreduce_rms_norm(x.clone(), residual.clone(), norm)
            near(got[1], torch.full((3, 8), 1.0 + world()))
            assert counted(group, reason) == found + 1, tandem.vllm.report()
            assert launches() == launched + 1, "the sum alone"
        compare(group, False, 3, torch.float32)
        assert counted(group) == before + 1


@check
def test_a_capture_without_a_plan_is_vllms_own(name):
    with vllm_groups(world()) as group:
        plans = tandem.torch.attach(group.device_group).plans
        run = plans.run

        def no_plan(key, make):
            if key[0] == "all_reduce_rms_norm":
                raise NoPlanYet("a graph is being captured")
            return run(key, make)

        plans.run = no_plan
        compare(group, True, 5, torch.float32, columns=40)
        assert counted(group, "captured") == 1, tandem.vllm.report()
        plans.run = run


@check
def test_another_signature_stays_vllms(name):
    """A later vLLM whose function has other parameters."""
    from tandem.vllm import _norms

    def fused_allreduce_rms_norm(hidden_states, residual, norm, stream):
        return hidden_states

    module = types.ModuleType(fused_allreduce_rms_norm.__module__)
    module.fused_allreduce_rms_norm = fused_allreduce_rms_norm
    full = "models.common.ops.fused_allreduce_rms_norm.fused_allreduce_rms_norm"
    _norms._put_in_front(full, "fused_allreduce_rms_norm", False, module)
    assert module.fused_allreduce_rms_norm is fused_allreduce_rms_norm


@check
def off_norms_are_vllms_own(name):
    assert not hasattr(gemma.fused_allreduce_gemma_rms_norm, "of_tandem")
    with vllm_groups(world()) as group:
        before = launches()
        compare(group, True, 3, torch.float32)
        assert (launches(), tandem.vllm.report().seen) == (before, 0), tandem.vllm.report()


if __name__ == "__main__":
    main("gloo")
