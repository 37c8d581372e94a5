"""Alternating arms on the ranks of one job: capture, align by a barrier on the device, time, take turns in random order."""

import random
import time
import traceback

import gpu_state
import kernel_times
import stats
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

SLEEP_CYCLES = 800_000  # about 0.4 ms: the host enqueues everything behind it before the GPU gets there


class Arm:
    """One way to do an operation. `run(i)` enqueues it once on the current stream with operand set i and returns its
    output; `run.spoil`, if there, spoils output 0 before a check. `graph`: measured in a CUDA graph, else launched on a
    stream, one call after another. `checked`: the output is compared with the reference. `check()` raises if something
    went wrong unseen, `close()` gives up what the arm holds; `note` goes to the results; `plan` is the id of a plan of
    Tandem's, whose launches its daemon times."""

    def __init__(self, name, run, graph=True, checked=True, check=None, close=None, note=None, plan=None):
        self.name, self.run, self.graph, self.checked = name, run, graph, checked
        self.check, self.close, self.note, self.plan = check, close, note, plan


def squares(output, exact):
    """Summed over the rows of `exact`, (rows, their values in float64): the squares of the output's errors, and of the values."""
    rows, values = exact
    return [((output[rows].double() - values) ** 2).sum().item(), (values**2).sum().item()]


def together(agree, function, *arguments):
    """Calls it, and raises on all ranks if it raised on any; `agree` says whether all are well. What it returned here."""
    problem = made = None
    try:
        made = function(*arguments)
    except Exception as failure:
        problem = failure
    if not agree(problem is None):
        raise problem or RuntimeError("it failed on another rank")
    return made


class Bench:
    def __init__(self, rank, world, log):
        self.rank, self.world, self.log = rank, world, log
        self.device = torch.device("cuda", torch.cuda.current_device())
        properties = torch.cuda.get_device_properties(self.device)
        self.uuid = f"GPU-{properties.uuid}"
        self.gpu = gpu_state.GpuState(self.uuid)
        self.stream = torch.cuda.Stream()
        group = dist.group.WORLD.group_name
        pad = symm_mem.empty(64, device=self.device, dtype=torch.float32)
        self.barrier_handle = symm_mem.rendezvous(pad, group)
        self.external = self.external_events_work()
        self.skip = frozenset()  # (case, arm) pairs that ended an earlier run
        self.trace = None  # gives the trace of the latest launches of each GPU, so many; on all ranks or on none
        log(f"{properties.name} {self.uuid}: events {'inside' if self.external else 'around'} graphs")

    def external_events_work(self):
        """Whether events recorded by a graph's nodes can be timed here."""
        try:
            start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
            data = torch.zeros(1 << 20, device=self.device)

            def work():
                start.record()
                data.add_(1)
                end.record()

            torch.cuda.synchronize()
            self.capture(work).replay()
            torch.cuda.synchronize()
            works = start.elapsed_time(end) > 0
        except Exception as error:  # what fails differs from version to version
            self.log(f"no events inside graphs: {error}")
            torch.cuda.synchronize()
            works = False
        return self.agree(works)

    def capture(self, work):
        """A graph of what `work` enqueues. Without torch.cuda.graph's garbage collection, which takes longer than most
        measurements; other threads (NCCL's, Tandem's) may go on calling CUDA."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph

    def align(self):
        """The ranks meet here on their devices."""
        self.barrier_handle.barrier(channel=0)

    def agree(self, good):
        flag = torch.tensor([1 if good else 0], device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        return flag.item() == 1

    def gather(self, value):
        values = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def events(self, external):
        return [torch.cuda.Event(enable_timing=True, **({"external": True} if external else {})) for _ in range(2)]

    def prepare(self, arm, count):
        """Warms `arm` up and captures it. Returns a function that enqueues one measurement and the events around it."""
        with torch.cuda.stream(self.stream):
            for i in range(3):
                arm.run(i)
        self.stream.synchronize()
        dist.barrier()
        if not arm.graph:
            start, end = self.events(False)

            def enqueue():
                torch.cuda._sleep(SLEEP_CYCLES)
                self.align()
                start.record()
                for i in range(count):
                    arm.run(i)
                end.record()

            return enqueue, start, end
        inside = self.events(True) if self.external else None

        def work():
            if inside:
                self.align()
                inside[0].record()
            for i in range(count):
                arm.run(i)
            if inside:
                inside[1].record()

        graph = self.capture(work)
        outside = inside or self.events(False)

        def enqueue():
            torch.cuda._sleep(SLEEP_CYCLES)
            if not inside:
                self.align()
                outside[0].record()
            graph.replay()
            if not inside:
                outside[1].record()

        enqueue.graph = graph  # lives as long as the measurement
        return enqueue, outside[0], outside[1]

    def time(self, prepared, count):
        """Microseconds of one operation, and the mean SM clock meanwhile."""
        enqueue, start, end = prepared
        clocks = []
        with torch.cuda.stream(self.stream):
            enqueue()
            while True:
                clocks.append(self.gpu.sm_clock_mhz())
                if self.stream.query():
                    break
                time.sleep(0.0005)
            self.stream.synchronize()
        seen = [clock for clock in clocks[:-1] or clocks if clock]  # the last was read when the work had ended
        return start.elapsed_time(end) * 1000 / count, sum(seen) / len(seen) if seen else None

    def wrong(self, arm, reference, tolerance, exact):
        """Runs the arm once and compares; returns (error, squares of the error against float64 or None) and the problem."""
        with torch.cuda.stream(self.stream):
            if hasattr(arm.run, "spoil"):
                arm.run.spoil()
            output = arm.run(0)
        self.stream.synchronize()
        error = ((output.float() - reference.float()).norm() / reference.float().norm()).item()
        problem = None if error <= tolerance else f"wrong by {error:.2e}"
        return (error, squares(output, exact) if exact and problem is None else None), problem

    def usable(self, case, name, factory, reference, tolerance, count, exact):
        """Makes and prepares an arm on all ranks and compares its output with the reference. (arm, prepared, errors) and
        None, or None and the problem, alike on all ranks."""
        self.log(f"prepare {case} / {name}")
        if (case, name) in self.skip:
            return None, "ended an earlier run"
        arm, prepared, errors, problem = None, None, (None, None), None
        try:
            arm = factory()
            torch.cuda.synchronize()  # it was made on the default stream
            if reference is not None and arm.checked:
                errors, problem = self.wrong(arm, reference, tolerance, exact)
            if problem is None:
                prepared = self.prepare(arm, count)
                self.time(prepared, count)
        except Exception as failure:
            problem = f"{type(failure).__name__}: {str(failure)[:400]}"
            self.log(traceback.format_exc(limit=4))
        problems = [text for text in self.gather(problem) if text]
        if not problems:
            return (arm, prepared, errors), None
        del prepared  # graphs go before what they launch
        self.finish(arm)
        return None, problems[0]

    def finish(self, arm):
        """The fault in the arm that no exception showed, or None. Closes it."""
        problem = None
        for call in (arm.check, arm.close) if arm is not None else ():
            try:
                if call is not None:
                    call()
            except Exception as failure:
                problem = problem or f"{type(failure).__name__}: {str(failure)[:400]}"
        return problem

    def kernel_times(self, case, live, times, count, rounds):
        """The daemon's GPU time of its plans' launches: {arm: figures}, on rank 0. The measured rounds are
        over; further launches follow them until enough have been timed by events, where that is a matter of an instant."""
        plans = {name: made[0].plan for name, made in sorted(live.items()) if made[0].plan is not None}
        if self.trace is None or not plans:
            return {}
        gathered = self.gather({name: stats.median(times[name]) for name in plans})
        done = 3 + count * (1 + rounds)  # by `prepare`, `usable` and the rounds
        turns = {
            name: -(-kernel_times.more_calls(done, max(rank[name] for rank in gathered)) // count) for name in plans
        }
        for turn in range(max(turns.values())):
            for name in (name for name in plans if turn < turns[name]):
                if turn == 0:
                    self.log(f"measure {case} / {name}")
                self.time(live[name][1], count)
        self.gather(None)  # all ranks' launches have ended
        if self.rank != 0:
            return {}
        try:
            launches = kernel_times.by_plan(
                self.trace((rounds + max(turns.values()) + 2) * count * len(plans)), self.world
            )
            return {name: kernel_times.figures(launches.get(plan, {}), count + 4) for name, plan in plans.items()}
        except Exception as failure:
            self.log(f"no kernel times: {type(failure).__name__}: {str(failure)[:400]}")
            return {}

    def compare(self, case, factories, reference, tolerance, count, rounds, exact=None):
        """Runs the arms in turn. Returns {arm: {"times": [rank][round], "clocks": [round][rank], "error", "error_fp64",
        "kernel", "note"}}, what failed, and the mean power in watts; alike on all ranks but for "kernel", which is rank 0's."""
        if reference is not None and not reference.isfinite().all().item():
            self.log(f"{case}: {reference.isnan().sum().item()} NaN in the reference")
        live, failed = {}, {}
        for name, factory in factories:
            made, problem = self.usable(case, name, factory, reference, tolerance, count, exact)
            if made is None:
                failed[name] = problem
                self.log(f"not usable: {case} / {name}: {problem}")
            else:
                live[name] = made
        order = random.Random(17)  # the same on all ranks
        times, clocks, power = {name: [] for name in live}, {name: [] for name in live}, []
        for index in range(rounds):
            for name in order.sample(sorted(live), len(live)):
                if index == 0:
                    self.log(f"measure {case} / {name}")
                took, clock = self.time(live[name][1], count)
                times[name].append(took)
                clocks[name].append(clock)
            power.append(self.gpu.power_watts())
        kernels = self.kernel_times(case, live, times, count, rounds)
        self.log(f"end {case}")
        notes, errors, problems = {}, {}, {}
        for name in list(live):
            arm, _, errors[name] = live.pop(name)
            del _  # graphs go before what they launch
            notes[name], problems[name] = arm.note, self.finish(arm)
        gathered = self.gather(
            {
                "times": times,
                "clocks": clocks,
                "power": power,
                "problems": problems,
                "squares": {name: against for name, (_, against) in errors.items()},
            }
        )
        measured = {}
        for name in times:
            bad = [rank["problems"][name] for rank in gathered if rank["problems"][name]]
            if bad:
                failed[name] = bad[0]
                continue
            measured[name] = {
                "times": [rank["times"][name] for rank in gathered],
                "clocks": list(zip(*[rank["clocks"][name] for rank in gathered])),
                "error": errors[name][0],
                "kernel": kernels.get(name, {}),
                "note": notes[name],
                "error_fp64": stats.relative_norm([rank["squares"][name] for rank in gathered]),
            }
        watts = [value for rank in gathered for value in rank["power"] if value]
        return measured, failed, round(sum(watts) / len(watts)) if watts else None
