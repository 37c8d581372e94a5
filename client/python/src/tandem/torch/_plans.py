"""Prepared plans of one group, found by op, shapes and types."""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from .. import _c, errors
from ..group import Group
from ..plan import Operand, Plan
from ..streams import Stream
from . import _distributed, _preparing
from ._config import Config
from ._families import FASTER, Families, Shape, nccl_is_faster, shape_of
from ._native import Table
from ._prepared import DTYPES, IN_PLACE, Call, Prepared, Slot, Staging
from ._symmetric import Ranges

# Reasons of a prepare that are no answer about the request: ranks have parted, and no fallback of one rank would meet the others.
_SLIPS = frozenset(("KEY_REUSED", "DESYNC", "RENEWING"))


class Declined(Exception):
    """Tandem cannot serve this call; the argument says why. Equal on all ranks."""


class NoPlanYet(RuntimeError):
    """A CUDA graph is being captured, and no plan or family serves the call; alike on all ranks."""


class Refusal:
    """Why Tandem cannot serve calls of one signature."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.used = 0


class PlanCache:
    """The plans of one group. Thread-safe. Ranks that make the same calls in the same order hold the same plans."""

    def __init__(self, group: Group | None, config: Config, symmetric: Ranges, table: Table | None) -> None:
        """symmetric: of the group. table: where the kernels in C++ find this group's plans; None where Python's kernels serve
        alone."""
        self._group, self._config, self._symmetric, self._table = group, config, symmetric, table
        self._on_host = group is not None and group.client.backend == "host"
        self._plans: dict[Any, Prepared | Refusal] = {}
        # Calls from Python run one after another. The thread with the turn may wait for other ranks, so nothing else waits for it.
        self._turn = threading.RLock()
        # The group alone uses it: a launch of another group waits for other ranks.
        self._stream: Stream | None = None
        self._staging: Staging | None = None
        # Of the kernels, which copy while Python runs another call. By the handles; all but the last are about to go.
        self._kernels_staging: dict[int, Staging] = {}
        self._made = 0
        self._families = Families(config.max_rows, group.world_size if group is not None else 1, config.max_plans)
        self._left: set[Any] = set()  # keys of torch.distributed's calls of one shape that another's collectives do faster
        self._offers = True  # whether the kernels get plans
        self._calls = 0  # counted here where there is no table
        self._deadline_ms = _c.milliseconds(config.launch_deadline, 0)

    def __len__(self) -> int:
        return len(self.prepared())

    def run(self, key: Any, make: Callable[[], Call]) -> Call:
        """Runs one call. `key`: all that its plan depends on, but strides; `make` gives it tensors.

        Declined: Tandem cannot serve it (on all ranks alike). Other failures raise TandemError with the rank's name.
        """
        call = make()
        on_host = self._on_host
        if not on_host:
            key = (key, tuple(slot.tensor.stride() for slot in call.slots))
        symmetric = self._symmetric_slots(call)
        if symmetric:
            key = (key, "symmetric", symmetric)
        with self._turn:
            prepared = self._plans.get(key)
            if (most := _preparing.asked_rows()) > 0:
                raise _preparing.Ended(self._serves(key, call, symmetric, prepared, most))
            if prepared is None:
                prepared = self._prepare(key, call, symmetric, on_host)
            prepared.used = self._tick()
            if isinstance(prepared, Refusal):
                raise Declined(prepared.reason)
            if on_host:
                self._run_on_host(prepared, call.slots)
            else:
                prepared.run_on_cuda(call.slots, self._deadline_ms)
            if self._table is not None and self._offers:
                self._offer(self._table, prepared, call.slots, on_host)
        return call

    def _serves(self, key: Any, call: Call, symmetric: tuple[int, ...], known: Prepared | Refusal | None, most: int) -> bool:
        """Whether a family serves such calls of 1 to `most` rows. It is prepared if need be."""
        if known is None or (isinstance(known, Prepared) and known.family is not None and known.family.most < most):
            with self._families.at_least(most):
                known = self._prepare(key, call, symmetric, self._on_host)
            known.used = self._tick()
        return isinstance(known, Prepared) and known.family is not None and known.family.most >= most

    def _symmetric_slots(self, call: Call) -> tuple[int, ...]:
        """The slots that are used in place in this call; with an output in place its input, which is the same memory."""
        roles, found = IN_PLACE.get(call.op, ()), []
        for i, slot in enumerate(call.slots):
            if slot.role in roles and self._symmetric.hold(slot.tensor):
                found += [i] if slot.alias_of is None else [slot.alias_of, i]
        return tuple(found)

    def _run_on_host(self, prepared: Prepared, slots: Sequence[Slot]) -> None:
        if self._staging is None or self._staging.memory.nbytes < prepared.staging_bytes:
            self._staging = self._new_staging(prepared.staging_bytes)
        staging = self._staging
        try:
            prepared.run_on_host(slots, staging, self.stream(), self._deadline_ms)
        except errors.TandemError:
            raise
        except BaseException:
            self._staging = None
            self._keep_memory(prepared, [staging, slots])
            raise

    def _new_staging(self, size: int) -> Staging:
        assert self._group is not None
        return Staging(self._group, size)

    def stream(self) -> Stream:
        """The group's stream on the host backend."""
        if self._stream is None:
            self._stream = Stream()
        return self._stream

    def broken_off(self, prepared: Prepared) -> None:
        """An exception has ended a kernel's wait for the plan on this thread: the launch may be in flight still. Takes no turn,
        since the kernel has its own, for which another call of Python's may wait."""
        assert self._table is not None
        staging = self._kernels_staging.pop(self._table.staging(), None)
        self._table.set_staging(None)
        self._keep_memory(prepared, [staging])

    def _keep_memory(self, prepared: Prepared, memory: list[Any]) -> None:
        """The launch in flight keeps this memory, and symmetric tensors: any of them may be its operand."""
        prepared.keep([*memory, *self._symmetric.owners()])
        if self._table is not None:  # the next call waits for the launch, which kernels do not
            prepared.used = max(prepared.used, self._table.last_use(prepared))
            self._table.remove(prepared)

    def _offer(self, table: Table, prepared: Prepared, slots: Sequence[Slot], on_host: bool) -> None:
        """Lets the kernels launch the plan in calls like the one that has just run."""
        stream = None
        if on_host:
            stream = self.stream()._open()
            current = self._kernels_staging.get(table.staging())
            if current is None or current.memory.nbytes < prepared.staging_bytes:
                larger = self._new_staging(prepared.staging_bytes)
                self._kernels_staging[larger.memory._open()] = larger
                table.set_staging(larger.memory)  # waits for calls that use the one before
                for handle in [handle for handle, one in self._kernels_staging.items() if one is not larger]:
                    self._kernels_staging.pop(handle, None)
        table.add(prepared, slots, stream, self._deadline_ms)

    def _tick(self) -> int:
        """The number of this call among the group's, in Python and in C++."""
        self._calls += 1
        return self._calls if self._table is None else self._table.tick()

    def _last_use(self, plan: Prepared | Refusal) -> int:
        if self._table is None or isinstance(plan, Refusal):
            return plan.used
        return max(plan.used, self._table.last_use(plan))

    def _prepare(self, key: Any, call: Call, symmetric: tuple[int, ...], on_host: bool) -> Prepared | Refusal:
        group, config = self._group, self._config
        assert group is not None
        operands = []
        for i, slot in enumerate(call.slots):
            dtype = DTYPES.get(slot.tensor.dtype)
            if dtype is None:
                return self._keep(key, Refusal(f"Tandem has no tensors of {slot.tensor.dtype}"))
            strides = None if on_host else slot.tensor.stride()
            operands.append(Operand(slot.role, dtype, tuple(slot.tensor.shape), strides, i in symmetric, slot.alias_of))
        # On the host backend "auto" takes the engines, which run plans of one shape.
        clients = config.placement == "client" or (config.placement == "auto" and not on_host)
        served = config.families if clients else "none"
        if served == "eager" or (config.autotune and served != "none"):
            served = "collectives" if _distributed.inside() else "none"
        family = shape_of(call, operands, served)
        # torch.distributed's calls have a process group that may be faster; torch.ops.tandem's have asked for Tandem.
        inside = _distributed.inside()
        if inside and (key in self._left or (family is not None and self._families.barred(family))):
            self._leave_to_nccl()
        if family is not None and (known := self._families.find(family)) is not None:
            return self._keep(key, Prepared(known.plan, call, symmetric, self.broken_off, known.rows_of(family)))
        if not on_host and torch.cuda.is_current_stream_capturing():
            if _distributed.decline(_distributed.Decline.ONCE, "a graph is being captured, and no plan is there yet"):
                raise Declined("no plan is there yet")
            raise NoPlanYet(
                f"tandem.{call.op} has no plan for these shapes yet, and a CUDA graph is being captured: run the captured function "
                "once before the capture, on all ranks, as torch.cuda.graph's warm-up does"
            )
        # Ranks that disagree meet under one key all the same, and all get the field's name. A key whose call fails is used again:
        # a rank that has made another call instead has not used it.
        name = f"torch.{self._made}"
        options: dict[str, Any] = {"placement": config.placement, "autotune": config.autotune, "determinism": config.level}
        options |= {"rounding": config.rounding, **call.options}
        bound = 0 if family is None else self._families.bound_for(family)
        if family is not None and bound > 0:
            options |= {"max_rows": bound, "autotune": False, **family.options}
        wanted = operands if family is None or bound == 0 else family.operands
        try:
            plan = group.prepare(name, call.op, wanted, deadline=config.rendezvous_timeout, **options)
        except (errors.Unimplemented, errors.FailedPrecondition, errors.InvalidArgument) as error:
            if isinstance(error, errors.FieldMismatch) or error.reason in _SLIPS:
                raise
            self._made += 1
            if family is not None and bound > 0:
                self._families.refuse(family)
                return self._prepare(key, call, symmetric, on_host)
            return self._keep(key, Refusal(str(error)))
        except errors.ResourceExhausted as error:
            # A quota is the daemon's answer to all ranks. Without room in one process the others have the family.
            if family is None or bound == 0 or not error.reason.startswith("QUOTA_"):
                raise
            self._made += 1
            self._families.refuse(family)
            return self._prepare(key, call, symmetric, on_host)
        except errors.TandemError:
            raise
        except BaseException:
            # Broken off. This rank comes again with the number that the others wait under, unless they have gone on.
            made = group.unclaimed(name)
            if made is not None:
                self._made += 1
                self._add(key, made, call, symmetric, family, bound)
            raise
        self._made += 1
        of_one_shape = family is None or bound == 0
        if inside and (of_one_shape or (family is not None and family.rows > bound // 2)) and nccl_is_faster(plan.info):
            if family is not None and bound > 0:
                self._families.bar(family, bound)
            else:
                self._leave(key)
            self._close_family(plan)
            self._leave_to_nccl()
        return self._add(key, plan, call, symmetric, family, bound)

    def _leave(self, key: Any) -> None:
        """Such calls of torch.distributed are its process group's from now on. All ranks forget at the same call."""
        if len(self._left) >= self._config.max_plans:
            self._left.clear()
        self._left.add(key)

    def _leave_to_nccl(self) -> NoReturn:
        """Leaves this call of torch.distributed to its process group. Calls of fewer rows are served."""
        reason = f"NCCL is predicted to be over {FASTER} times as fast with so many rows"
        _distributed.decline(_distributed.Decline.ONCE, reason)
        raise Declined(reason)

    def _add(
        self, key: Any, plan: Plan, call: Call, symmetric: tuple[int, ...], family: Shape | None, bound: int
    ) -> Prepared | Refusal:
        """Keeps a plan that was just made: a family of that bound, where it is above 0."""
        if family is None or bound == 0:
            return self._keep(key, Prepared(plan, call, symmetric, self.broken_off))
        made, smaller = self._families.add(family, bound, plan)
        if smaller is not None:  # all ranks take the larger one from here on
            self._close_calls(smaller)
        for oldest in self._families.take_oldest(family, self._last_use_of_family):
            self._close_calls(oldest)
            self._close_family(oldest)
        return self._keep(key, Prepared(plan, call, symmetric, self.broken_off, made.rows_of(family)))

    def _close_calls(self, family: Plan) -> None:
        for other in [other for other, kept in self._plans.items() if isinstance(kept, Prepared) and kept.plan is family]:
            self._close(self._plans.pop(other))

    def _last_use_of_family(self, family: Plan) -> int:
        """That of its calls that are known; 0 without one."""
        calls = (kept for kept in self._plans.values() if isinstance(kept, Prepared) and kept.plan is family)
        return max(map(self._last_use, calls), default=0)

    def _keep(self, key: Any, value: Prepared | Refusal) -> Prepared | Refusal:
        most = self._config.max_plans
        if len(self._plans) >= most:  # some at once, since all are asked for their last use
            going = len(self._plans) - most + max(1, most // 8)
            for oldest in heapq.nsmallest(going, self._plans, key=lambda other: self._last_use(self._plans[other])):
                gone = self._plans.pop(oldest)
                if isinstance(gone, Prepared) and gone.family is not None:
                    self._families.note_use(gone.plan, self._last_use(gone))
                self._close(gone)
        self._plans[key] = value
        return value

    def _close(self, plan: Prepared | Refusal) -> None:
        if isinstance(plan, Prepared):
            if self._table is not None:
                self._table.remove(plan)
            plan.close()

    def _close_family(self, plan: Plan) -> None:
        """Drops the handle after the family's launches: a graph may hold a member."""
        with contextlib.suppress(errors.TandemError):
            plan.wait(60)
        plan._handle.close()

    def prepared(self) -> list[Prepared]:
        """The live plans, the least recently used first."""
        plans = [plan for plan in list(self._plans.values()) if isinstance(plan, Prepared)]
        return sorted(plans, key=self._last_use)

    def infos(self) -> list[Any]:
        """PlanInfo of the live plans, the least recently used first."""
        return [plan.plan.info for plan in self.prepared()]

    def wait(self) -> None:
        """Waits for all launches; raises the first failure not yet raised."""
        for plan in self.prepared():
            plan.wait()

    def drop(self) -> None:
        """Releases all plans. Later calls prepare theirs anew, and Python launches them."""
        with self._turn:
            self._offers = False
            for plan in self._plans.values():
                with contextlib.suppress(errors.TandemError):
                    self._close(plan)
            self._plans.clear()
            self._families.close(self._close_family)

    def close(self) -> None:
        """Releases all plans, for good."""
        with self._turn:
            self.drop()
            if self._table is not None:
                self._table.close()
                self._table = None
            self._group, self._staging, self._stream = None, None, None
            self._kernels_staging.clear()
