"""A rank: programs of torch's own parallelism, by the backend and by Tandem: DDP, FSDP2, DTensor, checkpoints."""

import tandem.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from both_ways import both_ways, shared_folder
from checks import DEVICE, check, main
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

WIDE, STEPS = 24, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDE)
        self.up, self.down = nn.Linear(WIDE, 2 * WIDE), nn.Linear(2 * WIDE, WIDE)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


def make():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(WIDE, 7)).to(DEVICE)


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(2, 8, WIDE, generator=generator).to(DEVICE)


def whole(tensor):
    """The tensor without its layout on ranks."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def state(model):
    return {name: whole(value) for name, value in model.state_dict().items()}


def train(model, steps=STEPS, rank=None, clip=None):
    """Each step's loss and the model after them. clip: the norm by which gradients are clipped."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(batch(step, dist.get_rank() if rank is None else rank)).float().square().mean()
        loss.backward()
        if clip is not None:
            losses.append(whole(nn.utils.clip_grad_norm_(model.parameters(), 0.5, clip)))
        optimizer.step()
        losses.append(whole(loss))
    return losses, state(model)


@check
def test_ddp_of_several_buckets(name):
    def program():
        return train(nn.parallel.DistributedDataParallel(make(), bucket_cap_mb=0.005))

    both_ways("DDP", program, {"all_gather", "all_reduce", "broadcast"})


@check
def test_install_in_the_middle_of_a_training(name):
    def nothing():
        pass

    def program(between):
        ddp, model = nn.parallel.DistributedDataParallel(make(), bucket_cap_mb=0.005), sharded()
        results = []
        for step in range(3):
            between[step]()
            results.append((train(ddp, 1), train(model, 1)))
        return results

    want, before = program([nothing] * 3), tandem.torch.report().taken
    got = program([nothing, tandem.torch.install, tandem.torch.uninstall])
    assert tandem.torch.report().taken > before, str(tandem.torch.report())
    near = 0 if dist.get_world_size() == 2 else 1e-5
    torch.testing.assert_close(got, want, rtol=near, atol=near)


@check
def test_ddp_with_buffers_accumulation_and_sums_in_bfloat16(name):
    def program():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDE, 9), nn.BatchNorm1d(8), nn.Linear(9, 3)).to(DEVICE)
        ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0005, gradient_as_bucket_view=True)
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
        with ddp.no_sync():
            ddp(batch(7, dist.get_rank())).square().mean().backward()
        return train(ddp)

    taken = {"all_gather", "all_reduce", "broadcast"}
    both_ways("DDP, buffers and bf16 hook", program, taken, summed_in=torch.bfloat16)


def sharded(mesh=None, **how):
    model = make()
    for layer in model:
        fully_shard(layer, mesh=mesh, **how)
    return fully_shard(model, mesh=mesh, **how)


@check
def test_fsdp2(name):
    both_ways("FSDP2", lambda: train(sharded(), clip=2.0), {"all_gather", "all_reduce", "reduce_scatter"})


@check
def test_fsdp2_in_mixed_precision(name):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def program():
        return train(sharded(mp_policy=policy, reshard_after_forward=False), clip=float("inf"))

    both_ways("FSDP2 in bf16, clipped by the largest", program, {"all_gather", "all_reduce", "reduce_scatter"})


@check
def test_fsdp2_of_replicas(name):
    def program():
        mesh = init_device_mesh(DEVICE, (2, dist.get_world_size() // 2), mesh_dim_names=("replicas", "shards"))
        return train(sharded(mesh))

    both_ways("FSDP2 of replicas", program, {"all_gather", "all_reduce", "reduce_scatter"})


@check
def test_a_checkpoint_of_fsdp2(name):
    def program(folder):
        model = sharded()
        optimizer = torch.optim.AdamW(model.parameters())
        model(batch(0, dist.get_rank())).square().mean().backward()
        optimizer.step()
        before = state(model)
        kept, of_optimizer = get_state_dict(model, optimizer)
        dcp.save({"model": kept, "optimizer": of_optimizer}, checkpoint_id=folder)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        kept, of_optimizer = get_state_dict(model, optimizer)
        dcp.load({"model": kept, "optimizer": of_optimizer}, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=kept, optim_state_dict=of_optimizer)
        after = state(model)
        torch.testing.assert_close(after, before, rtol=0, atol=0)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        full = get_model_state_dict(model, options=options)
        other = sharded()
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(other, full, options=options)
        return after, state(other)

    with shared_folder() as folder:
        both_ways("FSDP2's checkpoint", lambda: program(folder), {"all_gather", "broadcast", "reduce_scatter"})


@check
def test_fsdp1(name):
    def program():
        policy = ModuleWrapPolicy({Block})
        return train(FullyShardedDataParallel(make(), auto_wrap_policy=policy, device_id=torch.device(DEVICE)))

    both_ways("FSDP1", program, {"all_gather", "reduce_scatter"})


@check
def test_ddp_with_a_sharded_optimizer_and_uneven_batches(name):
    def program():
        ddp = nn.parallel.DistributedDataParallel(make())
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
        with Join([ddp, optimizer]):
            for step in range(2 + dist.get_rank() % 2):
                optimizer.zero_grad()
                ddp(batch(step, dist.get_rank())).square().mean().backward()
                optimizer.step()
        return state(ddp)

    both_ways("DDP, ZeRO and uneven batches", program, {"all_gather", "all_reduce", "broadcast"})


@check
def test_tensor_parallel_modules(name):
    def program():
        mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
        model = make()
        for block in model[:2]:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh, plan)
        parallelize_module(model, mesh, {"2": ColwiseParallel(output_layouts=Replicate())})
        return train(model, rank=0)

    both_ways("tensor parallel", program, {"all_gather", "all_reduce", "broadcast"})


@check
def test_sequence_parallel_modules(name):
    def program():
        mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
        model = make()
        plan = {
            "0": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True)
        }
        for i in range(2):
            plan[f"{i}.norm"] = SequenceParallel(use_local_output=True)
            plan[f"{i}.up"] = ColwiseParallel(input_layouts=Shard(1))
            plan[f"{i}.down"] = RowwiseParallel(output_layouts=Shard(1))
        plan["2"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
        parallelize_module(model, mesh, plan)
        return train(model, rank=0)

    both_ways("sequence parallel", program, {"all_gather", "all_reduce", "broadcast", "reduce_scatter"})


@check
def test_tensors_that_change_their_layout(name):
    def program():
        mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
        x = distribute_tensor(batch(1, 0), mesh, [Shard(1)])
        return whole(x.redistribute(mesh, [Shard(2)])), whole(x.sum(dim=1)), whole(x.redistribute(mesh, [Replicate()]))

    both_ways("DTensor", program, {"all_gather", "all_reduce"})


if __name__ == "__main__":
    main()
