"""All scenarios, by name, and what defines each."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields

from tests.chaos.states.contracts import CONTRACTS, SETTLING
from tests.chaos.states.endpoints import SINKS, SOURCES
from tests.chaos.states.scenarios import RECOVERIES, Scenario
from tests.chaos.states.stateful import STATEFUL
from tests.chaos.states.steps import BETWEEN

__all__ = ["SCENARIOS", "definition"]

SCENARIOS: Mapping[str, Scenario] = {
    s.name: s for s in (*RECOVERIES, *CONTRACTS, *SETTLING, *STATEFUL, *SOURCES, *SINKS)
}


def definition(scenario: Scenario, kinds: Iterable[str]) -> str:
    """Name what defines a scenario: its parameters, the code of its classes, and where its durable steps may lie.

    Comments and docstrings do not count; nor do other kinds of step than those that its run has.
    """
    parts = [f"{f.name}={_value(getattr(scenario, f.name))}" for f in fields(scenario)]
    classes = [cls for of in (type(scenario), scenario.box) for cls in of.__mro__]
    parts += [_code(cls) for cls in classes if cls.__module__.startswith(__package__)]
    parts += [
        f"{kind}: {[(sorted(opens), sorted(closes)) for opens, closes in BETWEEN.get(kind, ())]}"
        for kind in sorted(kinds)
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _value(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


@functools.cache
def _code(cls: type) -> str:
    tree = ast.parse(inspect.getsource(cls))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            node.body = [part for part in node.body if not _is_text(part)]
    return ast.dump(tree)


def _is_text(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)
