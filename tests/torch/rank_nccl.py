"""One rank whose process group has the backend "tandem" with NCCL inside, on a GPU of its own or a shared one."""

import os

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, check, main, once

BACKEND = "cpu:gloo,cuda:tandem"


def nccl_options(**values):
    options = dist.ProcessGroupNCCL.Options()
    for name, value in values.items():
        setattr(options, name, value)
    return options


def inner(group):
    return group._get_backend(torch.device(DEVICE))


def summed(group=None):
    x = torch.full((5, 3), 2.0, device=DEVICE)
    dist.all_reduce(x, group=group)
    assert torch.equal(x, torch.full_like(x, 2.0)), x


def stream_is_high(group):
    return inner(group).options.is_high_priority_stream


@check
def test_the_inner_backend_is_nccls(name):
    assert isinstance(inner(dist.group.WORLD), dist.ProcessGroupNCCL), inner(dist.group.WORLD)
    summed()
    assert not stream_is_high(dist.group.WORLD)


@check
def test_nccls_options_reach_it(name):
    given = nccl_options(is_high_priority_stream=True)
    for options in (
        given,
        tandem.torch.BackendOptions(options=given),
        tandem.torch.BackendOptions(inner="nccl", options=given),
    ):
        group = dist.new_group(backend=BACKEND, pg_options=options)
        summed(group)
        assert stream_is_high(group), options
        dist.destroy_process_group(group)
    group = dist.new_group(backend=BACKEND, pg_options=tandem.torch.BackendOptions())
    summed(group)
    assert not stream_is_high(group)
    dist.destroy_process_group(group)


@check
def test_a_group_is_split(name):
    group = dist.split_group(None, [[0]], group_desc="split")
    summed(group)
    assert isinstance(inner(group), dist.ProcessGroupNCCL)
    assert "tandem" in dist.get_backend_config(group), dist.get_backend_config(group)
    dist.destroy_process_group(group)


@check
def test_nccl_coalesces(name):
    tensors = [torch.full((n,), 3.0, device=DEVICE) for n in (3, 5)]
    with dist.distributed_c10d._coalescing_manager(device=tensors[0].device, async_ops=True) as works:
        for tensor in tensors:
            dist.all_reduce(tensor)
    works.wait()
    torch.cuda.synchronize()
    assert all(torch.equal(tensor, torch.full_like(tensor, 3.0)) for tensor in tensors)


@check
def test_works_have_futures_and_sequence_numbers(name):
    group = dist.group.WORLD
    before = inner(group)._get_sequence_number_for_group()
    work = dist.all_reduce(torch.ones(4, device=DEVICE), async_op=True)
    assert work.get_future().wait()[0].sum() == 4
    assert inner(group)._get_sequence_number_for_group() == before + 1


@check
def test_a_group_is_aborted(name):
    group = dist.new_group(backend=BACKEND)
    summed(group)
    inner(group).abort()
    summed()


@once
def test_torch_distributed_ends_and_begins_again(name):
    store = dist.distributed_c10d._get_default_store()
    for time in range(3):
        dist.destroy_process_group()
        again = dist.PrefixStore(f"again/{time}", store)
        dist.init_process_group(
            BACKEND, store=again, rank=0, world_size=1, device_id=torch.device("cuda", torch.cuda.current_device())
        )
        summed()


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    main(BACKEND, device_id=torch.device("cuda", torch.cuda.current_device()))
