"""Functions of a server against a table of what its versions have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Table", "class_difference", "difference", "recorded"]

# By version: functions in modules of the server, and the names and defaults of their parameters.
Table = Mapping[str, Mapping[str, str]]


def recorded(table: Table, name: str) -> set[str]:
    """What the versions have for the function of this name."""
    return {functions[name] for functions in table.values() if name in functions}


def difference(name: str, function: Callable[..., Any], known: set[str]) -> str:
    """How the parameters of a function differ from all that are known; "" where they are one of these."""
    given = inspect.signature(function).parameters.values()
    found = ", ".join(one.name if one.default is one.empty else f"{one.name}={one.default!r}" for one in given)
    return "" if found in known else f"{name} has the parameters ({found}), and Tandem knows ({') or ('.join(sorted(known))})"


def class_difference(kind: type, names: Sequence[str], known: Callable[[str], set[str]], optional: Sequence[str] = ()) -> str:
    """How a class differs in its methods of these names from what `known` has for each; "" where it has one of these for all. An
    optional method may be missing."""
    for name in names:
        if getattr(kind, name, None) is None:
            return f"{kind.__name__} has no {name}"
    for name in (*names, *optional):
        method = getattr(kind, name, None)
        told = "" if method is None else difference(f"{kind.__name__}.{name}", method, known(name))
        if told:
            return told
    return ""
