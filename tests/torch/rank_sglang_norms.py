"""A rank of SGLang whose layers leave their sums to the norms behind them, by the real package's functions and norms.

As rank_sglang.py, whose groups these are. SGLang's own fused kernel is not there, so its gate is shut but for Tandem."""

import contextlib
import types

import tandem.sglang
import tandem.torch
import torch
from checks import check, main
from rank_sglang import (
    CLIENT,
    batches,
    check_bits,
    deterministic_group,
    launches,
    parts,
    sglang_group,
    world,
)
from sglang.srt.layers import flashinfer_comm_fusion as fusion
from sglang.srt.layers import layernorm
from sglang.srt.layers.layer_boundary.residual import add_norm
from sglang.srt.runtime_context import get_parallel
from tandem.torch._plans import NoPlanYet

EPSILON = 1e-5


@contextlib.contextmanager
def layers_over(group, backend="auto"):
    """SGLang's layers have their parts on the group's ranks; a server's arguments chose the backend of fused norms."""
    size, rank = group.world_size, group.rank_in_group
    given = fusion.get_exec, add_norm.get_exec
    chosen = types.SimpleNamespace(comm=types.SimpleNamespace(flashinfer_allreduce_fusion_backend=backend))
    fusion.get_exec = add_norm.get_exec = lambda: chosen
    try:
        with get_parallel().override(
            tp_size=size,
            tp_group=group,
            attn_tp_size=size,
            attn_tp_rank=rank,
            attn_tp_group=group,
            moe_tp_size=size,
            moe_tp_group=group,
            moe_ep_size=1,
            moe_dp_size=1,
        ):
            yield
    finally:
        fusion.get_exec, add_norm.get_exec = given


def norm_of(kind, columns, dtype):
    """A norm of SGLang's, and the factors that it multiplies by."""
    norm = kind(columns, eps=EPSILON).to(dtype)
    norm.weight.data.copy_(torch.rand(columns, generator=torch.Generator().manual_seed(7)).to(dtype))
    if kind is layernorm.RMSNorm:
        return norm, norm.weight.detach().float()
    norm.refresh_gemma_weight()
    return norm, norm.weight.detach().float() + 1


def compare(group, kind, rows, dtype, seed=0, attention=True, columns=24):
    """SGLang's norm of a sum that a layer has left to it, beside torch's."""
    tensors = parts(group, (rows, columns), seed, dtype)
    residual = parts(group, (rows, columns), seed + 50, dtype)[0]
    norm, factors = norm_of(kind, columns, dtype)
    total = torch.stack([one.float() for one in tensors]).sum(0) + residual.float()
    want = torch.nn.functional.rms_norm(total, (columns,), eps=EPSILON) * factors
    kept = residual.clone()
    with torch.no_grad():
        got = norm.forward_with_allreduce_fusion(
            tensors[group.rank_in_group].clone(), residual, use_attn_tp_group=attention
        )
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    for one, other in zip(got, (want, total), strict=True):
        torch.testing.assert_close(one.float(), other, rtol=tolerance, atol=tolerance)
    assert torch.equal(residual, kept), "SGLang keeps the residual"


def counted(group, reason=""):
    """Calls of fused norms with this outcome."""
    rows = [row for row in tandem.sglang.report().rows if (row.group, row.op) == (group.unique_name, "all_reduce_norm")]
    return sum(row.calls for row in rows if (reason in row.reason if reason else not row.reason))


@check
def test_sums_with_a_norm_are_taken(name):
    with sglang_group() as group, layers_over(group):
        for kind in (layernorm.RMSNorm, layernorm.GemmaRMSNorm):
            for seed, rows in enumerate((1, 7, 64)):
                for dtype in (torch.float32, torch.bfloat16):
                    compare(group, kind, rows, dtype, seed, attention=seed != 1)
        assert counted(group) == 12, tandem.sglang.report()


@check
def test_every_number_of_rows_shares_a_plan(name):
    if not CLIENT:  # families run on the ranks' own streams
        return
    with sglang_group() as group, layers_over(group):
        plans = tandem.torch.attach(group.device_group).plans
        for rows in (*range(1, 20), 255, 256, 1, 100):
            compare(group, layernorm.RMSNorm, rows, torch.float32)
        assert plans._made == 1, plans._made


@check
def test_the_gate_opens_where_tandem_serves(name):
    with sglang_group() as group:
        with layers_over(group):
            assert add_norm.flashinfer_ar_fusion_applies(8)
            assert not add_norm.flashinfer_ar_fusion_applies(0)
            assert not add_norm.flashinfer_ar_fusion_applies(add_norm.FUSE_ALLREDUCE_MAX_BATCH_SIZE + 1)
        for backend in (None, "cutedsl"):  # SGLang has no fused norms for the model, or other ones
            with layers_over(group, backend):
                assert not add_norm.flashinfer_ar_fusion_applies(8)
    with sglang_group("pp") as other, layers_over(other):  # a group that is not served
        assert not add_norm.flashinfer_ar_fusion_applies(8)


@check
def test_what_tandem_declines_is_sglangs_own(name):
    """Tandem sums all the same where it declines the norm."""
    with sglang_group() as group, layers_over(group):
        before = launches()
        compare(group, layernorm.RMSNorm, 3, torch.float32)
        assert launches() == before + 1
        x, residual = torch.ones(3, 8), torch.ones(3, 8)
        norm, _ = norm_of(layernorm.RMSNorm, 8, torch.bfloat16)
        with torch.no_grad():
            got = norm.forward_with_allreduce_fusion(x, residual)
        torch.testing.assert_close(got[1].float(), torch.full((3, 8), 1.0 + world()))
        assert (counted(group), counted(group, "weight is torch.bfloat16")) == (1, 1), tandem.sglang.report()
        assert launches() == before + 2, "the sum alone"


@check
def test_a_capture_without_a_plan_is_sglangs_own(name):
    with sglang_group() as group, layers_over(group):
        plans = tandem.torch.attach(group.device_group).plans
        run = plans.run

        def no_plan(key, make):
            if key[0] == "all_reduce_rms_norm":
                raise NoPlanYet("a graph is being captured")
            return run(key, make)

        plans.run = no_plan
        compare(group, layernorm.RMSNorm, 5, torch.float32)
        assert (counted(group), counted(group, "captured")) == (0, 1), tandem.sglang.report()


@check
def test_deterministic_norms_stay_apart(name):
    """Whatever SGLang's gate would say: Tandem's sum, then SGLang's norm, for all rows."""
    with deterministic_group() as group, layers_over(group):
        most = add_norm.FUSE_ALLREDUCE_MAX_BATCH_SIZE
        assert not any(add_norm.flashinfer_ar_fusion_applies(rows) for rows in (1, 8, most, most + 1))
        for dtype in (torch.float32, torch.bfloat16):
            norm, _ = norm_of(layernorm.RMSNorm, 40, dtype)
            pools, residuals, known = parts(group, (7, 40), 3, dtype), parts(group, (7, 40), 4, dtype), {}
            for chosen in batches(7):
                before = launches()
                with torch.no_grad():
                    x, residual = pools[group.rank_in_group][chosen], residuals[0][chosen]
                    check_bits(known, chosen, *norm.forward_with_allreduce_fusion(x, residual))
                assert launches() == before + 1, "the sum alone"
        assert counted(group) == 0, tandem.sglang.report()


@check
def test_another_signature_stays_sglangs(name):
    """A later SGLang whose function has other parameters."""
    from tandem.sglang import _norms, _signatures

    def fused(input_tensor, stream):
        return None, None

    module = types.ModuleType("later")
    module.fused = fused
    _norms._put_in_front(_signatures.NORM, "fused", _norms._norm_of, module)
    assert module.fused is fused


if __name__ == "__main__":
    main("gloo")
