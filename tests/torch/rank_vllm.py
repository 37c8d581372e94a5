"""A rank of vLLM: its groups are made by the functions of the real package, which finds Tandem among its plug-ins.

The environment's PYTHONPATH has vLLM's sources and Tandem's entry points (test_vllm.py). Checks off_* are run by name."""

import contextlib
import logging
import os
import types
import warnings

import tandem.torch
import tandem.vllm
import torch
import torch.distributed as dist
from checks import check, main
from tandem.torch import _native
from tandem.torch._plans import NoPlanYet
from vllm.config import vllm as configuration
from vllm.distributed import communication_op, parallel_state
from vllm.distributed.device_communicators import cpu_communicator
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins

CLIENT = os.environ.get("TANDEM_TEST_CLIENT", "") == "1"
TOKENS = 5000
# Groups read these fields alone. A whole configuration needs vLLM's command line.
configuration._current_vllm_config = types.SimpleNamespace(
    model_config=types.SimpleNamespace(is_moe=False, architecture=""),
    scheduler_config=types.SimpleNamespace(max_num_batched_tokens=TOKENS),
    engram_config=None,
    parallel_config=types.SimpleNamespace(
        all2all_backend=None,
        cpu_distributed_timeout=None,
        cpu_distributed_timeout_seconds=None,
        data_parallel_size=1,
        distributed_executor_backend="mp",
        distributed_timeout_seconds=None,
        enable_elastic_ep=False,
        enable_eplb=False,
        nnodes=1,
        nnodes_within_dp=1,
        use_all2all=False,
        use_sequence_parallel_moe=False,
    ),
)
load_general_plugins()


def world():
    return dist.get_world_size()


@contextlib.contextmanager
def vllm_groups(tensor, pipeline=1):
    """vLLM's groups of these sizes; gives that of the tensor-parallel ranks."""
    tandem.torch.configure(placement="client" if CLIENT else "auto")
    rank = dist.get_rank()
    parallel_state.init_distributed_environment(world(), rank, "env://", rank, "gloo")
    parallel_state.initialize_model_parallel(tensor, pipeline, backend="gloo")
    try:
        yield parallel_state.get_tp_group()
    finally:
        parallel_state.destroy_model_parallel()


def launches():
    """Calls that Tandem's kernels, or Python's for them, have run."""
    counts = _native.counts()
    return counts.launched + counts.handed_on


class Own:
    """Counts the calls of a method of vLLM's own communicators while it is entered."""

    def __init__(self, name):
        self.name, self.calls = name, 0

    def __enter__(self):
        kind = next(one for one in cpu_communicator.CpuCommunicator.__mro__ if self.name in vars(one))
        self.kind, self.method = kind, getattr(kind, self.name)

        def counted(*given, **named):
            self.calls += 1
            return self.method(*given, **named)

        setattr(kind, self.name, counted)
        return self

    def __exit__(self, *_):
        setattr(self.kind, self.name, self.method)


def parts(group, shape, seed=0, dtype=torch.float32):
    """A random tensor of each rank of the group, equal on all."""
    made = torch.Generator().manual_seed(1000 * seed + group.ranks[0])
    return [torch.randn(shape, generator=made).to(dtype) for _ in range(group.world_size)]


def near(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-5 if found.dtype is torch.float32 else 2e-2, atol=1e-5)


def all_three(group, rows, seed, dtype=torch.float32):
    """Each collective of vLLM's on random tensors with so many rows, as models call it."""
    own, size = group.rank_in_group, group.world_size
    tensors = parts(group, (rows, 24), seed, dtype)
    total = torch.stack([one.float() for one in tensors]).sum(0).to(dtype)
    near(communication_op.tensor_model_parallel_all_reduce(tensors[own].clone()), total)
    near(communication_op.tensor_model_parallel_all_gather(tensors[own]), torch.cat(tensors, -1))
    near(communication_op.tensor_model_parallel_all_gather(tensors[own], 0), torch.cat(tensors, 0))
    near(communication_op.tensor_model_parallel_reduce_scatter(tensors[own]), total.chunk(size, -1)[own])
    tensors = parts(group, (rows * size, 6), seed + 1, dtype)
    total = torch.stack([one.float() for one in tensors]).sum(0).to(dtype)
    near(communication_op.tensor_model_parallel_reduce_scatter(tensors[own], 0), total.chunk(size, 0)[own])


@check
def test_vllm_finds_the_plug_in(name):
    named = current_platform.get_device_communicator_cls()
    assert named == "tandem.vllm._communicators.CpuCommunicator", named
    tandem.vllm.register()
    assert current_platform.get_device_communicator_cls() == named
    with vllm_groups(world()) as group:
        kind = type(group.device_communicator)
        assert issubclass(kind, cpu_communicator.CpuCommunicator), kind.__mro__
        assert isinstance(kind.__name__, str) and kind.__name__ == "CpuCommunicator"


@check
def test_collectives(name):
    with vllm_groups(world()) as group:
        for dtype in (torch.float32, torch.bfloat16):
            for seed, rows in enumerate((1, 2, 3, 7, 64, 257)):
                before, counted = launches(), tandem.vllm.report()
                with Own("all_reduce") as reduce, Own("all_gather") as gather, Own("reduce_scatter") as scatter:
                    all_three(group, rows, seed, dtype)
                assert (reduce.calls, gather.calls, scatter.calls) == (0, 0, 0)
                assert launches() == before + 5, (launches(), before)
                assert tandem.vllm.report().taken == counted.taken + 5


@check
def test_inner_dimensions(name):
    with vllm_groups(world()) as group:
        own, size = group.rank_in_group, group.world_size
        tensors = parts(group, (3, 4 * size, 2 * size))
        total = torch.stack(tensors).sum(0)
        for dim in (0, 1, 2, -1, -2, -3):
            near(group.all_gather(tensors[own], dim), torch.cat(tensors, dim))
            if dim not in (0, -3):
                near(group.reduce_scatter(tensors[own], dim), total.chunk(size, dim)[own])
        turned = tensors[own].transpose(0, 1)
        near(group.all_reduce(turned.clone(memory_format=torch.preserve_format)), total.transpose(0, 1))
        near(group.reduce_scatter(turned, 0), total.transpose(0, 1).chunk(size, 0)[own])
        near(group.all_gather(turned, 2), torch.cat([one.transpose(0, 1) for one in tensors], 2))


@check
def test_the_input_stays(name):
    with vllm_groups(world()) as group:
        x = torch.full((5, 8), float(dist.get_rank() + 1))
        kept = x.clone()
        group.all_reduce(x)
        assert torch.equal(x, kept), x


@check
def test_every_number_of_rows_shares_a_plan(name):
    if not CLIENT:  # families run on the ranks' own streams
        return
    with vllm_groups(world()) as group:
        plans = tandem.torch.attach(group.device_group).plans
        for rows in (*range(1, 40), 255, 256, 1, 100):
            x = torch.full((rows, 16), float(group.rank_in_group + 1))
            near(group.all_reduce(x), torch.full_like(x, world() * (world() + 1) / 2))
            near(group.all_gather(x), torch.arange(1.0, world() + 1).repeat_interleave(16).repeat(rows, 1))
        assert plans._made == 2, plans._made
        config = tandem.torch.attach(group.device_group).config
        assert (config.families, config.max_rows) == ("all", max(8192, TOKENS * world())), config


@check
def test_groups_sleep_by_vllms_names(name):
    if not hasattr(parallel_state, "suspend_device_comms"):  # of later versions
        return
    with vllm_groups(world()) as group:
        own = tandem.torch.attach(group.device_group).group
        all_three(group, 4, 0)

        def hook(name):
            parallel_state._apply_to_device_comms(lambda communicator: getattr(communicator, name)())

        for sleep, wake in (
            (parallel_state.suspend_device_comms, parallel_state.resume_device_comms),
            (lambda: hook("checkpoint_prepare"), lambda: hook("checkpoint_restore")),
        ):
            for seed in range(2):
                sleep()
                sleep()  # nothing
                try:
                    group.all_reduce(torch.ones(4, 24))
                except tandem.TandemError as error:
                    assert error.reason == "SUSPENDED", error
                else:
                    raise AssertionError("a group that sleeps has run a collective")
                wake()
                wake()
                before = launches()
                with Own("all_reduce") as reduce:
                    all_three(group, 4, seed)
                assert reduce.calls == 0 and launches() > before
        assert own is tandem.torch.attach(group.device_group).group


@check
def test_what_tandem_declines_is_vllms_own(name):
    with vllm_groups(world()) as group:
        own = group.rank_in_group
        tensors = parts(group, (4, 8), dtype=torch.float64)
        before = launches()
        with Own("all_reduce") as reduce, warns("vLLM's own communicator"):
            near(group.all_reduce(tensors[own].clone()).float(), torch.stack(tensors).sum(0).float())
        assert reduce.calls == 1
        rows = [row for row in tandem.vllm.report().rows if row.group == group.unique_name and row.reason]
        assert len(rows) == 1 and rows[0].calls == 1 and "float64" in rows[0].reason, rows
        with Own("all_reduce") as reduce:
            all_three(group, 4, 0)
        assert reduce.calls == 0 and launches() > before


@contextlib.contextmanager
def warns(text):
    """The group's rank 0 gets one warning with this text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    found = [str(one.message) for one in caught if text in str(one.message)]
    assert len(found) == (1 if dist.get_rank() == 0 else 0), [str(one.message) for one in caught]


@check
def test_a_capture_without_a_plan_is_vllms_own(name):
    with vllm_groups(world()) as group:
        plans, run = tandem.torch.attach(group.device_group).plans, None

        def no_plan(*_):
            raise NoPlanYet("a graph is being captured")

        run, plans.run = plans.run, no_plan
        x = torch.full((3, 5), float(group.rank_in_group + 1))
        with Own("all_reduce") as reduce:
            near(group.all_reduce(x), torch.full((3, 5), world() * (world() + 1) / 2))
        assert reduce.calls == 1
        plans.run = run


@check
def test_several_tensor_parallel_groups(name):
    if world() < 4:
        return
    with vllm_groups(2, 2) as group:
        for seed, rows in enumerate((1, 5, 64)):
            all_three(group, rows, seed)
        pipe, before = parallel_state.get_pp_group(), launches()
        x = torch.full((4,), float(pipe.rank_in_group))
        near(pipe.all_reduce(x), torch.full((4,), 1.0))
        assert launches() == before, "a group of pipeline stages went to Tandem"


@check
def test_other_groups_are_left_alone(name):
    with vllm_groups(1, world()):
        pipe, before = parallel_state.get_pp_group(), launches()
        assert pipe.unique_name.startswith("pp"), pipe.unique_name
        x = torch.full((4, 2), 1.0)
        with Own("all_reduce") as reduce, Own("all_gather") as gather:
            near(pipe.all_reduce(x.clone()), x * world())
            near(pipe.all_gather(x, 0), torch.ones(4 * world(), 2))
        assert (reduce.calls, gather.calls, launches()) == (1, 1, before)
        assert not any(row.group.startswith("pp") for row in tandem.vllm.report().rows)


@check
def test_destroying_a_group_leaves_tandems(name):
    with vllm_groups(world()) as group:
        all_three(group, 3, 0)
        found = tandem.torch.attach(group.device_group)
        assert found.group is not None
    assert found.group is None, found
    with vllm_groups(world()) as group:  # and the next ones are served
        before = launches()
        all_three(group, 3, 1)
        assert launches() > before


def nothing_taken(group):
    before = launches()
    with Own("all_reduce") as reduce:
        near(group.all_reduce(torch.ones(3, 4)), torch.full((3, 4), float(world())))
    assert (reduce.calls, launches()) == (1, before)


@check
def test_another_signature_stays_vllms(name):
    """A later vLLM whose communicator has other parameters."""
    from tandem.vllm import _communicators

    class CpuCommunicator(cpu_communicator.CpuCommunicator):
        def all_reduce(self, input_, stream):
            return input_

    class Handler(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())

    told = []
    handler = Handler()
    logging.getLogger("tandem.vllm").addHandler(handler)
    assert _communicators._made(CpuCommunicator) is CpuCommunicator
    logging.getLogger("tandem.vllm").removeHandler(handler)
    assert len(told) == 1 and "(self, input_, stream)" in told[0], told


@check
def test_collectives_of_some_versions(name):
    """Those that vLLM's communicators for GPUs have from 0.33 on."""
    from tandem.vllm import _communicators

    class CpuCommunicator(cpu_communicator.CpuCommunicator):
        def custom_all_gather(self, input_):
            return None

        def custom_reduce_scatter(self, input_):
            return None

    kind = _communicators._made(CpuCommunicator)
    with vllm_groups(world()) as group:
        made = kind(group.cpu_group, group.device, group.device_group, unique_name="tp:custom")
        tensors = parts(group, (2 * world(), 3))
        own = group.rank_in_group
        near(made.custom_all_gather(tensors[own]), torch.cat(tensors))
        near(made.custom_reduce_scatter(tensors[own]), torch.stack(tensors).sum(0).chunk(world())[own])
        with warns("vLLM's own communicator"):
            assert made.custom_reduce_scatter(tensors[own].double()) is None  # the caller calls reduce_scatter then
        made.destroy()


@check
def off_everything_is_vllms_own(name):
    with vllm_groups(world()) as group:
        nothing_taken(group)
        assert tandem.vllm.report().taken == 0


@check
def off_vllms_classes_are_untouched(name):
    assert current_platform.get_device_communicator_cls().startswith("vllm."), current_platform
    with vllm_groups(world()) as group:
        assert type(group.device_communicator) is cpu_communicator.CpuCommunicator
        nothing_taken(group)
        assert tandem.vllm.report().seen == 0


if __name__ == "__main__":
    main("gloo")
