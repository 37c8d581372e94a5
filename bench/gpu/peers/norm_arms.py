"""The arms of all-reduce -> residual + RMSNorm, as between the halves of a transformer's layer."""

import torch
import torch.distributed as dist
from arm_parts import SETS, TOLERANCE, client_arms, plain, tandem_arms, writing
from flashinfer_side import shots_arms
from measure import Arm

EPS = 1e-6
THEN = "+torch norm"


def all_reduce_norm(context, case):
    """FlashInfer does it in one kernel and Tandem in one launch; to the all-reduces of NCCL torch adds its sum with the residual
    and its norm."""
    m, n = case.m, case.n
    inputs, residual = context.random(m, n), context.random(m, n)
    gamma = [1 + 0.1 * weight for weight in context.random(n)]
    for tensor in (*residual, *gamma):
        dist.broadcast(tensor, src=0)
    sums, total, out = context.empty(m, n), context.empty(m, n), context.empty(m, n)

    def norm(summed, i):
        torch.add(summed, residual[i], out=total[i])
        return torch.nn.functional.rms_norm(total[i], (n,), gamma[i], EPS)

    summed = inputs[0].float()
    dist.all_reduce(summed)
    total_fp32 = summed + residual[0].float()
    reference = total_fp32 * (total_fp32.square().mean(-1, keepdim=True) + EPS).rsqrt() * gamma[0].float()

    def with_norm(name, make):
        """The arm that make() makes of an all-reduce, with the norm behind it."""

        def made():
            arm = make()
            reduce = arm.run
            run = lambda i: norm(reduce(i), i % SETS)
            run.spoil = getattr(reduce, "spoil", lambda: None)
            arm.name, arm.run = name + THEN, run
            return arm

        return name + THEN, made

    def on_memory(name, windows):
        return Arm(name, writing(sums, lambda i: windows.all_reduce(sums[i], inputs[i])))

    def on_windows(name, windows):
        sources, sinks = context.window_copies(windows, inputs), context.window_empty(windows, m, n)
        return Arm(name, writing(sinks, lambda i: windows.all_reduce(sinks[i], sources[i])))

    def flashinfer(name, shots):
        def call(i):
            context.flashinfer.all_reduce_norm(inputs[i], residual[i], gamma[i], EPS, total[i], out[i], shots)

        return Arm(name, writing(out, call))

    arms = context.each_nccl("nccl", on_memory) + context.each_nccl("windows", on_windows)

    def operands(outputs):
        rest = {"norm_weight": gamma, "residual": residual, "residual_output": total}
        return {"input": inputs, "output": outputs, **rest}

    own = context.symmetric(m, n)
    algorithms = plain("one_shot", "two_shot", "low_latency")
    ours = tandem_arms(context, case.name, "all_reduce", operands(own), own, algorithms, norm_epsilon=EPS)
    choices = [(name, name) for name in ("one_shot", "two_shot", "low_latency", "auto")]
    ours += client_arms(context, case.name, "all_reduce", operands(out), out, choices, norm_epsilon=EPS)
    return [with_norm(*arm) for arm in arms] + ours + shots_arms(context, flashinfer), reference, TOLERANCE
