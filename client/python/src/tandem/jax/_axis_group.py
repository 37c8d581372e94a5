"""Tandem's group of one axis of a mesh, and its plans."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from typing import NamedTuple

from .. import errors
from ..group import Group
from ..plan import Operand, Plan
from . import _config
from ._library import ORDER_BYTES, HostGroup, calls

__all__ = ["AxisGroup", "Request", "Served"]

# Elements of a flat operand, each of which is a row.
_LEAST_ELEMENTS, _MOST_ELEMENTS = 1 << 16, 1 << 28
_LEAST_ROWS = 256
_PRODUCTS = frozenset(("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"))
# Every rank gets it for a request that no plan can serve.
_REFUSALS = (errors.InvalidArgument, errors.FailedPrecondition, errors.ResourceExhausted, errors.Unimplemented, errors.OutOfRange)


class Request(NamedTuple):
    """What a call asks for. operands: (role, type, shape, strides or None) of each slot, for a number of rows. rows: of this call.
    epsilon: of a norm."""

    op: str
    operands: Callable[[int], list[Operand]]
    rows: int
    flat: bool
    epsilon: float = 0.0


class Served(NamedTuple):
    """A plan in the table of libtandem_jax.so, and the launch's rows."""

    plan: int
    rows: int


class AxisGroup:
    """Not thread-safe: the mesh's lock guards it."""

    def __init__(self, group: Group, label: str, agree: Callable[[str], str]) -> None:
        """label: equal in all processes. agree: the first refusal of all processes, "" if there is none."""
        self.group, self._label, self._agree = group, label, agree
        self._prepared = 0
        self._plans: dict[str, tuple[int, Plan]] = {}  # by description
        self._bounds: dict[str, int] = {}  # of the largest family, by description without a bound
        self._refused: dict[str, str] = {}
        self._host = 0
        if group.client.backend == "host":
            self._order = self._prepare(
                "broadcast", [Operand(role, "u8", (ORDER_BYTES,)) for role in ("input", "output")], 0, 0.0, "client"
            )
            deadline = int(1000 * _config.current().launch_deadline)
            gpu = group.gpu_uuid.encode()
            given = HostGroup(group.client._open(), gpu, group.rank, self._order._open(), deadline)
            self._host = calls().open_host_group(ctypes.byref(given))

    def _prepare(self, op: str, operands: list[Operand], max_rows: int, epsilon: float, placement: str) -> Plan:
        # Ranks that prepare different plans hear of it at once, since the numbers are the same.
        self._prepared += 1
        key = f"jax #{self._prepared}"
        timeout = _config.current().rendezvous_timeout
        return self.group.prepare(key, op, operands, max_rows=max_rows, norm_epsilon=epsilon, placement=placement, deadline=timeout)

    def serve(self, request: Request) -> Served | str:
        """The plan for the call; a new one is prepared, for which all ranks meet. The reason where there is none."""
        config = _config.current()
        families = config.families == "all" or (config.families == "collectives" and request.op not in _PRODUCTS)
        if families and request.rows <= (_MOST_ELEMENTS if request.flat else config.max_rows):
            served = self._serve_by_family(request, config)
            if isinstance(served, Served):
                return served
        # XLA may capture a launch, for which an engine would have to know XLA's memory before.
        auto = "client" if self.group.client.backend == "cuda" else "auto"
        return self._find(request, 0, auto if config.placement == "auto" else config.placement)

    def _serve_by_family(self, request: Request, config: _config.Config) -> Served | str:
        world = self.group.world_size
        kind = _describe(request, request.operands(world))
        bound = self._bounds.get(kind, 0)
        if request.rows > bound:
            least, most = (_LEAST_ELEMENTS, _MOST_ELEMENTS) if request.flat else (_LEAST_ROWS, config.max_rows)
            doubled = min(most, 1 << (max(request.rows, least) - 1).bit_length())
            bound = -(-doubled // world) * world
        served = self._find(request, bound, "auto")
        if isinstance(served, Served):
            self._bounds[kind] = bound
            _, plan = self._plans[_describe(request, request.operands(bound), bound)]
            if request.rows % plan.info["row_unit"]:
                return "the rows do not divide"
        return served

    def _find(self, request: Request, bound: int, placement: str) -> Served | str:
        """bound: of a family; 0: a plan of one shape."""
        operands = request.operands(bound or request.rows)
        description = _describe(request, operands, bound)
        if description in self._refused:
            return self._refused[description]
        if description not in self._plans:
            refusal, plan = "", None
            try:
                plan = self._prepare(request.op, operands, bound, request.epsilon, placement)
            except _REFUSALS as error:
                refusal = f"Tandem has no plan for it: {error.message}"
            refusal = self._agree(refusal)
            if refusal or plan is None:
                self._refused[description] = refusal
                return refusal
            # Equal in all processes, since it is part of the program that XLA compiles.
            digest = hashlib.sha256(f"{self._label}|{description}".encode()).digest()
            name = int.from_bytes(digest[:8], "little") >> 1
            if not calls().add_plan(name, plan._open(), self._host):
                raise errors.ResourceExhausted("libtandem_jax.so has no memory")
            self._plans[description] = (name, plan)
        return Served(self._plans[description][0], request.rows if bound else -1)

    def wait(self, timeout: float) -> None:
        """Waits for the launches of this rank, and raises the first failure that nobody has raised."""
        for _, plan in self._plans.values():
            plan.wait(timeout)

    def close(self) -> None:
        """Ends the calls, and leaves the group."""
        for name, _ in self._plans.values():
            calls().remove_plan(name)
        if self._host:
            calls().close_host_group(self._host)
        self.group.leave()


def _describe(request: Request, operands: list[Operand], bound: int = -1) -> str:
    shapes = [(one.role, one.dtype, tuple(one.shape), one.strides) for one in operands]
    return f"{request.op}|{shapes}|{request.epsilon!r}|{bound}"
