"""Groups: ranks on one node that run plans together."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from . import _c, enums, errors
from ._membership import Membership
from ._session import Session
from .enums import DType, Op
from .memory import Memory, Tensor, allocate_registered
from .plan import Operand, Plan, PlanInfo, Request

__all__ = ["Group"]


class Group(Membership):
    """This rank's membership of a group. Usable from any thread. Leaving the context, or leave(), leaves it cleanly."""

    def __init__(self, client: Session, handle: int, name: str) -> None:
        super().__init__(client, handle, name)
        self._owns_client = False  # of init(): the client ends with the group
        # Results of prepare() and empty() calls that were broken off as they succeeded.
        self._unclaimed: dict[str, Plan] = {}
        self._unclaimed_tensors: dict[Any, Tensor] = {}

    def __repr__(self) -> str:
        return f"<tandem.Group {self.name!r}: rank {self.rank} of {self.world_size} on {self.gpu_uuid}>"

    def prepare(
        self,
        key: str,
        op: Op | str,
        operands: Sequence[Operand | tuple[str, Memory]] = (),
        *,
        deadline: float | None = 30,
        **options: Any,
    ) -> Plan:
        """A plan for `op`, which every rank prepares under the same `key`.

        operands: one a slot; a pair of role and memory takes the memory's shape and type. options: dim, reduce_op, root, wire,
        fast_accumulation, low_contention, chunk_pivot, transfers, algorithm, steps, lanes, on_unfused, restartable, placement,
        autotune, norm_epsilon, max_rows, determinism, rounding (docs/protocol.md says which must agree). deadline: seconds
        within which all ranks must come.

        Raises RankLate (names the ranks), FieldMismatch (names the field), InvalidArgument (a wrong request),
        AlgorithmRefused (the reason against each algorithm).
        """
        slots = [operand if isinstance(operand, Operand) else Operand.of(*operand) for operand in operands]
        request = Request(op, slots, **options)
        library, plan = _c.library(), _c.Pointer()
        structure = request.to_c()

        def _made() -> None:
            self._unclaimed[key] = Plan(self, plan.value or 0)

        library.wait(
            library.prepare,
            self._open(),
            _c.text("key", key),
            ctypes.byref(structure),
            _c.milliseconds(deadline),
            ctypes.byref(plan),
            made=_made,
        )
        self._unclaimed.pop(key, None)  # the same plan: a key that is prepared again has one
        return Plan(self, plan.value or 0)

    def preview(self, op: Op | str, operands: Sequence[Operand | tuple[str, Memory]] = (), **options: Any) -> PlanInfo:
        """The plan that prepare() would make if all ranks asked for it now: algorithm, placement, whether it is fused, the reasons
        and the predicted time.

        This rank alone asks the daemon. No other rank is waited for, and nothing is made: `plan_id` is 0, and the group's
        workspace is what it is without this plan. Memory and quotas are not looked at; `autotune` measures nothing. Raises what
        prepare() raises for a request that cannot run, and InvalidArgument for send_receive, whose plan needs the other ranks'
        transfers.
        """
        slots = [operand if isinstance(operand, Operand) else Operand.of(*operand) for operand in operands]
        request = Request(op, slots, **options)
        library, preview = _c.library(), _c.Pointer()
        structure = request.to_c()
        library.raise_status(library.preview_plan(self._open(), ctypes.byref(structure), ctypes.byref(preview)))
        handle = _c.Handle(preview.value, library.preview_free)
        info: PlanInfo = json.loads(library.preview_json(handle.value))
        return info

    def unclaimed(self, key: str) -> Plan | None:
        """The plan of a prepare() that was broken off as it succeeded; the caller's from now on. None if there is none."""
        return self._unclaimed.pop(key, None)

    def empty(
        self, shape: Sequence[int] | int, dtype: DType | str = DType.f32, *, name: str | None = None, deadline: float | None = 30
    ) -> Tensor:
        """A symmetric tensor; every rank calls this with the same number of bytes. Its contents are not set.

        name: persistent; a later call with the name gets the same memory while the group lives. RankLate names who is missing.
        """
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = enums.parse(DType, dtype)
        library, tensor = _c.library(), _c.Pointer()
        # A call before may have been broken off as it succeeded.
        same = (extents, kind, name)
        unclaimed = self._unclaimed_tensors.pop(same, None)
        if unclaimed is not None:
            return unclaimed

        def _made() -> None:
            self._unclaimed_tensors[same] = Tensor(self, tensor.value or 0, extents, kind)

        library.wait(
            library.allocate,
            self._open(),
            _c.extents(extents),
            len(extents),
            kind,
            _c.optional_text("persistent_name", name),
            _c.milliseconds(deadline),
            ctypes.byref(tensor),
            made=_made,
        )
        return Tensor(self, tensor.value or 0, extents, kind)

    def registered(self, shape: Sequence[int] | int, dtype: DType | str = DType.f32) -> Memory:
        """Registered memory of this rank's own on the group's GPU. No other rank takes part."""
        return allocate_registered(self.client, shape, dtype, self.gpu_uuid)

    def leave(self, deadline: float | None = 30) -> None:
        """Leaves after this rank's own launches. Later launches of the others fail with RankLeft. A call that a signal's handler
        breaks off can be made again."""
        if self._handle.value:
            library = _c.library()
            self._unclaimed.clear()
            self._unclaimed_tensors.clear()
            try:
                library.wait(library.group_leave, self._handle.value, _c.milliseconds(deadline), made=self._end)
            except errors.TandemError:
                self._end()
                raise
            self._end()

    def _end(self) -> None:
        self._handle.close()
        if self._owns_client:
            self.client.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.leave()
        else:
            self._handle.close()
