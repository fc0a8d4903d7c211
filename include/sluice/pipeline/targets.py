"""Checks that ``package.module:function`` exists, without running the module."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from sluice.shipped import CHECKOUT

__all__ = ["check_function"]


def check_function(target: str, *, classes: bool = False) -> None:
    """Check a target as far as possible without importing its module.

    Parameters
    ----------
    classes
        Whether it may be a class, too.

    Raises
    ------
    ValueError
        If it has the wrong form, or no such module or function is on ``sys.path``.
    """
    module, colon, function = target.partition(":")
    if not colon or not function.isidentifier() or not all(p.isidentifier() for p in module.split(".")):
        raise ValueError(f"{target!r}: write package.module:function")
    try:
        found = importlib.util.find_spec(module)
    except ImportError:
        found = None
    if found is None or not found.origin:
        ours = "include/ and spark_jobs/ are on it" if CHECKOUT else "PYTHONPATH adds to it"
        raise ValueError(f"no module {module!r} on the Python path ({ours})")
    if found.origin.endswith(".py"):
        tree = ast.parse(Path(found.origin).read_text())
        kinds = (ast.FunctionDef, ast.ClassDef) if classes else (ast.FunctionDef,)
        names = {n.name for n in tree.body if isinstance(n, kinds)}
        names |= {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
        names |= {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
        if function not in names:
            raise ValueError(f"module {module!r} has no {'class or ' * classes}function {function!r}")
