"""A rank: programs of transformers, Accelerate and Lightning, by the process group's backend and by Tandem."""

import contextlib
import warnings

import torch
import torch.distributed as dist
from both_ways import both_ways, shared_folder
from checks import CUDA, DEVICE, check, main
from torch.distributed.tensor import DTensor

WIDE = 16


def batches(rank, count=4):
    generator = torch.Generator().manual_seed(10 + rank)
    return [torch.randn(4, WIDE, generator=generator) for _ in range(count)]


def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDE, 40), torch.nn.Tanh(), torch.nn.Linear(40, WIDE))


def copy(tensors):
    return [(one.full_tensor() if isinstance(one, DTensor) else one).detach().clone().cpu() for one in tensors]


def small(kind, **more):
    """A configuration of a transformers model."""
    return kind(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        eos_token_id=None,
        pad_token_id=0,
        **more,
    )


def batch_of_ids(rank, rows=2):
    return torch.randint(1, 128, (rows, 7), generator=torch.Generator().manual_seed(rank)).to(DEVICE)


def llama(transformers):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(small(transformers.LlamaConfig))


def mixture_of_experts(transformers):
    torch.manual_seed(0)
    config = small(transformers.Qwen3MoeConfig, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    return transformers.Qwen3MoeForCausalLM(config)


@contextlib.contextmanager
def saved(model):
    """The folder of a model of random weights, as it would come from the Hub."""
    with shared_folder() as folder:
        model.save_pretrained(folder)
        dist.barrier()
        yield folder


@check
def test_transformers_tensor_parallel(name):
    import transformers

    transformers.utils.logging.disable_progress_bar()

    def program(folder):
        how = transformers.DistributedConfig(tp_plan="auto")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, distributed_config=how).eval()
        ids = batch_of_ids(0)
        with torch.no_grad():
            logits = model(ids).logits
        tokens = model.generate(ids, max_new_tokens=12, do_sample=False)
        loss = model(ids, labels=ids).loss
        loss.backward()
        gradients = copy(one.grad for one in model.parameters())
        return copy([logits, loss]), tokens.tolist(), gradients

    with saved(llama(transformers)) as folder:
        both_ways("transformers, tp_plan", lambda: program(folder), {"all_gather", "all_reduce"})


@check
def test_transformers_fsdp2(name):
    import transformers

    def program(folder):
        how = transformers.DistributedConfig(fsdp_size=dist.get_world_size())
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, distributed_config=how)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(2):
            ids = batch_of_ids(dist.get_rank())
            loss = model(ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return copy(losses), copy(model.parameters())

    with saved(llama(transformers)) as folder:
        both_ways("transformers, fsdp_size", lambda: program(folder), {"all_gather", "reduce_scatter"})


@check
def test_transformers_expert_parallel(name):
    import transformers

    def program(folder):
        world = dist.get_world_size()
        how = transformers.DistributedConfig(fsdp_size=world, ep_size=world)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, distributed_config=how)
        ids = batch_of_ids(dist.get_rank())
        loss = model(ids, labels=ids).loss
        loss.backward()
        return copy([loss]), copy(one.grad for one in model.parameters())

    with saved(mixture_of_experts(transformers)) as folder:
        taken, left = {"all_gather", "all_to_all", "reduce_scatter"}, {("all_to_all", "its splits are given")}
        both_ways("transformers, ep_size", lambda: program(folder), taken, left)


@check
def test_transformers_trainer(name):
    import transformers

    def program(folder):
        ids = [{"input_ids": one, "labels": one} for one in batch_of_ids(0, 16)]
        how = transformers.TrainingArguments(
            folder,
            use_cpu=not CUDA,
            max_steps=3,
            per_device_train_batch_size=2,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
            learning_rate=0.01,
            optim="sgd",
        )
        trainer = transformers.Trainer(llama(transformers), how, train_dataset=ids, eval_dataset=ids)
        loss = trainer.train().training_loss
        return loss, trainer.evaluate()["eval_loss"], copy(trainer.model.parameters())

    with shared_folder() as folder:
        both_ways("transformers, Trainer", lambda: program(folder), {"all_gather", "all_reduce", "broadcast"})


@check
def test_accelerate(name):
    import accelerate
    from accelerate.state import AcceleratorState

    def program():
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(cpu=not CUDA)
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.DataLoader(torch.cat(batches(0)), batch_size=4)
        model, optimizer, data = accelerator.prepare(model, optimizer, data)
        seen = []
        for x in data:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seen += [accelerator.gather(loss), accelerator.gather_for_metrics(x), accelerator.reduce(loss, "mean")]
        seen.append(accelerate.utils.broadcast(torch.full((3,), float(dist.get_rank()))))
        told = accelerate.utils.gather_object([dist.get_rank()])
        return copy(seen), copy(model.parameters()), told

    both_ways("Accelerate", program, {"all_gather", "all_reduce", "broadcast"})


def fit(strategy, configure=None):
    """Two steps of Lightning's trainer: the model's parameters and what it has logged."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = make()

        def configure_model(self):
            if configure is not None and not hasattr(self, "parallel"):
                self.parallel = True
                configure(self.model, self.device_mesh)

        def training_step(self, batch, index):
            loss = self.model(batch).square().mean()
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="gpu" if CUDA else "cpu",
        devices=dist.get_world_size(),
        strategy=strategy,
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, torch.utils.data.DataLoader(torch.cat(batches(0, 8)), batch_size=4))
    return copy(module.parameters()), copy([trainer.callback_metrics["loss"]])


@check
def test_lightning_ddp(name):
    both_ways("Lightning, DDP", lambda: fit("ddp"), {"all_gather", "all_reduce", "broadcast"})


@check
def test_lightning_tensor_parallel_and_fsdp2(name):
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    data = dist.get_world_size() // 2

    def configure(model, mesh):
        parallelize_module(model, mesh["tensor_parallel"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["data_parallel"])

    def program():
        return fit(ModelParallelStrategy(data_parallel_size=data, tensor_parallel_size=2), configure)

    both_ways("Lightning, TP x FSDP2", program, {"all_gather", "all_reduce", "broadcast", "reduce_scatter"})


if __name__ == "__main__":
    main()
