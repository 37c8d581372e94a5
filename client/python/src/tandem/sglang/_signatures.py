"""The functions of SGLang that Tandem stands around or relies on, as SGLang's versions have them.

A test compares the table with each version's wheel. At run time the version does not count: Tandem stands around methods that have
one of these signatures, and around none where one has another.
"""

from __future__ import annotations

import inspect

__all__ = ["GROUP", "RECORDED", "difference"]

GROUP = "srt.distributed.parallel_state.GroupCoordinator."

# By version: functions in modules of SGLang, and the names and defaults of their parameters.
RECORDED: dict[str, dict[str, str]] = {
    "0.5.23": {
        GROUP + "all_reduce": "self, input_",
        GROUP + "_all_reduce_out_place": "self, input_, outplace_all_reduce_method",
        GROUP + "_all_reduce_in_place": "self, input_",
        GROUP + "_all_gather_into_tensor": "self, output, input",
        GROUP + "_reduce_scatter_tensor": "self, output, input",
        GROUP + "destroy": "self",
        "srt.plugins.load_plugins": "",
        "srt.plugins.hook_registry.HookRegistry.register": "cls, target, hook, hook_type=HookType.AFTER, *, source=None",
    },
}


def _known(name: str) -> set[str]:
    return {table[GROUP + name] for table in RECORDED.values() if GROUP + name in table}


def difference(kind: type, names: tuple[str, ...]) -> str:
    """How a class of groups differs from all that are recorded, in its methods of these names; "" where it is as one of them."""
    for name in names:
        method = getattr(kind, name, None)
        if method is None:
            return f"{kind.__name__} has no {name}"
        given = inspect.signature(method).parameters.values()
        found = ", ".join(one.name if one.default is one.empty else f"{one.name}={one.default!r}" for one in given)
        if found not in _known(name):
            return f"{kind.__name__}.{name} has the parameters ({found}), and Tandem knows ({') or ('.join(sorted(_known(name)))})"
    return ""
