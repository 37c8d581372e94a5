"""A rank of vLLM whose compiled functions go through vLLM's own passes, with Tandem's among them, and through Inductor.

As rank_vllm_norms.py, whose stand-ins for names of vLLM's kernels these need, too."""

import types

import rank_vllm_norms
import tandem.vllm
import torch
from checks import check, main
from rank_vllm import launches, parts, vllm_groups, world
from rank_vllm_norms import counted, near
from tandem.vllm import _compiled
from torch._inductor import config as inductor
from vllm import ir
from vllm.compilation.passes import inductor_pass, pass_manager
from vllm.config.compilation import PassConfig
from vllm.config.utils import Range
from vllm.distributed import communication_op
from vllm.platforms import current_platform

assert rank_vllm_norms._kernels
COLUMNS, EPSILON = 32, 1e-5


def vllm_passes(model=None):
    """vLLM's passes, configured by a configuration that vLLM's platform has seen, for this configuration of a model."""
    off = {name: False for name in PassConfig.__dataclass_fields__ if name.startswith(("fuse_", "enable_"))}
    config = types.SimpleNamespace(
        compilation_config=types.SimpleNamespace(
            pass_config=PassConfig(**off), splitting_ops=[], use_inductor_graph_partition=False
        ),
        model_config=model,
        device_config=None,
        additional_config={},
    )

    class Platform:
        @classmethod
        def check_and_update_config(cls, vllm_config):
            assert vllm_config is config

    _compiled._name_in_configurations(Platform)
    Platform.check_and_update_config(config)
    assert config.additional_config == {"tandem": _compiled._OWN}, config.additional_config
    manager = pass_manager.PostGradPassManager()
    manager.configure(config)
    return manager


def run(function, *given):
    """The function's result, compiled, and the passes that it went through."""
    manager = vllm_passes()
    torch._dynamo.reset()
    with (
        torch.no_grad(),
        inductor_pass.pass_context(Range(1, 4096)),
        inductor.patch(post_grad_custom_post_pass=manager, fx_graph_cache=False),
    ):
        return torch.compile(function, fullgraph=True, dynamic=False)(*given)


def layer(is_gemma=False):
    """Two halves of a layer. The second sum's residual is the first one's."""

    def function(x, residual, weight):
        factors = weight.float() + 1.0 if is_gemma else weight
        total = communication_op.tensor_model_parallel_all_reduce(x)
        normed, residual = ir.ops.fused_add_rms_norm(total, residual, factors, EPSILON)
        total = communication_op.tensor_model_parallel_all_reduce(torch.relu(normed))
        return ir.ops.fused_add_rms_norm(total, residual, factors, EPSILON)

    return function


def want_of(group, tensors, residual, weight, is_gemma):
    factors = weight.float() + is_gemma

    def half(total, residual):
        total = total + residual
        return torch.nn.functional.rms_norm(total, (COLUMNS,), eps=EPSILON) * factors, total

    normed, total = half(torch.stack([one.float() for one in tensors]).sum(0), residual.float())
    return half(group.world_size * torch.relu(normed), total)


def inputs(group, rows, dtype):
    weight = torch.rand(COLUMNS, generator=torch.Generator().manual_seed(5)).to(dtype)
    return parts(group, (rows, COLUMNS), 1, dtype), parts(group, (rows, COLUMNS), 2, dtype)[0], weight


@check
def test_sums_with_a_norm_are_fused(name):
    with vllm_groups(world()) as group:
        group.use_custom_op_call = True  # as on GPUs
        for is_gemma, dtype in ((False, torch.float32), (False, torch.bfloat16), (True, torch.bfloat16)):
            tensors, residual, weight = inputs(group, 6, dtype)
            before, launched, kept = counted(group), launches(), residual.clone()
            got = run(layer(is_gemma), tensors[group.rank_in_group], residual, weight)
            tolerance = 1e-4 if dtype is torch.float32 else 6e-2
            for one, other in zip(got, want_of(group, tensors, residual, weight, is_gemma), strict=True):
                near(one.float(), other, tolerance)
            assert counted(group) - before == 2 and launches() - launched == 2, tandem.vllm.report()
            assert torch.equal(residual, kept), "an argument of the compiled function was written"


@check
def test_what_the_pass_leaves(name):
    """A sum with another use, a weight of another type, and a group that is not served."""

    def used_twice(x, residual, weight):
        total = communication_op.tensor_model_parallel_all_reduce(x)
        return (*ir.ops.fused_add_rms_norm(total, residual, weight, EPSILON), total * 2)

    with vllm_groups(world()) as group:
        group.use_custom_op_call = True
        tensors, residual, weight = inputs(group, 6, torch.bfloat16)
        x = tensors[group.rank_in_group]
        before = counted(group)
        run(used_twice, x, residual, weight)
        run(layer(), x, residual, weight.float())
        communicator, served = group.device_communicator, group.device_communicator._tandem_group
        communicator._tandem_group = ""
        launched = launches()
        run(layer(), x, residual, weight)
        assert launches() == launched and counted(group) == before, tandem.vllm.report()
        communicator._tandem_group = served


@check
def test_a_group_that_is_served_no_more(name):
    """What was compiled for a served group runs by vLLM's own sum and norm, as from vLLM's cache."""
    with vllm_groups(world()) as group:
        group.use_custom_op_call = True
        for is_gemma, dtype in ((False, torch.float32), (True, torch.bfloat16)):
            tensors, residual, weight = inputs(group, 6, dtype)
            communicator, served = group.device_communicator, group.device_communicator._tandem_group
            compiled_for = {}

            def function(x, residual, weight, is_gemma=is_gemma):
                op = torch.ops.tandem_vllm.all_reduce_rms_norm
                total = residual.clone()
                normed = op(x, total, weight, EPSILON, is_gemma, group.unique_name)
                return normed, total

            compiled_for[is_gemma] = function(tensors[group.rank_in_group], residual, weight)
            communicator._tandem_group = ""
            launched = launches()
            other = function(tensors[group.rank_in_group], residual, weight)
            assert launches() == launched
            communicator._tandem_group = served
            for one, theirs in zip(compiled_for[is_gemma], other, strict=True):
                near(one.float(), theirs.float(), 1e-4 if dtype is torch.float32 else 3e-2)


@check
def test_the_key_of_vllms_cache(name):
    """It differs with Tandem, and so do keys of Inductor's cache where other groups are served."""
    kind = type(current_platform)
    assert kind.check_and_update_config.__name__ == "check_and_update_config"
    with vllm_groups(world()) as group, inductor_pass.pass_context(Range(1, 4096)):
        manager = vllm_passes()
        names = [type(one).__name__ for one in manager.passes]
        assert names[:2] == ["NoOpEliminationPass", "TandemAllReduceNormPass"], names
        key = manager.uuid()
        assert key == manager.uuid()
        group.device_communicator._tandem_group, served = "", group.device_communicator._tandem_group
        assert manager.uuid() != key
        group.device_communicator._tandem_group = served


if __name__ == "__main__":
    main("gloo")
