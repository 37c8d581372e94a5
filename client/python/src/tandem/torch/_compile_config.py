"""Where a program says that torch.compile uses the pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._pass import TandemPass

__all__ = ["CompileConfig", "compile_config"]


class CompileConfig:
    """Inductor's settings that have the pass in them, from their making to disable(), or to the end of a `with` block.

    Inductor pads no matrix products meanwhile: it times that on each rank, and ranks that decide otherwise have other graphs.
    """

    def __init__(self, groups: Sequence[str] | None) -> None:
        from torch._inductor import config

        self._before: Any = config.post_grad_custom_post_pass
        if isinstance(self._before, (list, tuple)):  # torch >= 2.13
            self.made: TandemPass = TandemPass(groups)
            config.post_grad_custom_post_pass = [*self._before, self.made]
        else:
            self.made = TandemPass(groups, self._before)
            config.post_grad_custom_post_pass = self.made
        self._padded: bool = config.shape_padding
        config.shape_padding = False
        self._enabled = True

    def disable(self) -> None:
        """Sets what was set before. A second call does nothing."""
        from torch._inductor import config

        if self._enabled:
            config.post_grad_custom_post_pass = self._before
            config.shape_padding = self._padded
        self._enabled = False

    def __enter__(self) -> TandemPass:
        return self.made

    def __exit__(self, *failure: object) -> None:
        self.disable()


def compile_config(groups: Sequence[Any] | None = None) -> CompileConfig:
    """From now on torch.compile uses the pass, behind a pass that is set already. groups: process groups or their names; None: all.

    As a plain call it serves the whole program. As a context manager it ends with its block: then the first call of a compiled
    function belongs into the block, and whatever compiles it anew, as another shape or torch._dynamo.reset(), does too.
    """
    return CompileConfig(None if groups is None else [one if isinstance(one, str) else str(one.group_name) for one in groups])
