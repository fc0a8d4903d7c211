"""Checks that ``package.module:function`` exists, without running the module or a package around it."""

from __future__ import annotations

import ast
import os
import sys
from importlib.machinery import ModuleSpec
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
        If it has the wrong form, no such module or function is on ``sys.path``, or the module is no Python.
    """
    module, colon, function = target.partition(":")
    if not colon or not function.isidentifier() or not all(p.isidentifier() for p in module.split(".")):
        raise ValueError(f"{target!r}: write package.module:function")
    found = _found(module)
    if found is None or not found.origin:
        ours = "include/ and spark_jobs/ are on it" if CHECKOUT else "PYTHONPATH adds to it"
        raise ValueError(f"no module {module!r} on the Python path ({ours})")
    if found.origin.endswith(".py"):
        tree = _parsed(module, found.origin)
        kinds = (ast.FunctionDef, ast.ClassDef) if classes else (ast.FunctionDef,)
        names = {n.name for n in tree.body if isinstance(n, kinds)}
        names |= {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
        names |= {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
        if function not in names:
            raise ValueError(f"module {module!r} has no {'class or ' * classes}function {function!r}")


def _found(module: str) -> ModuleSpec | None:
    """Return where a module is. ``importlib.util.find_spec`` would import the packages around it."""
    places: list[str] | None = None
    names = module.split(".")
    for depth, part in enumerate(names, 1):
        name = ".".join(names[:depth])
        try:
            spec = getattr(sys.modules.get(name), "__spec__", None) or next(
                (found for finder in sys.meta_path if (found := finder.find_spec(name, places)) is not None), None
            )
            if spec is None or depth == len(names):
                return spec
            places = list(spec.submodule_search_locations or ())
        except KeyError:  # a package without __init__.py, within one that is not imported
            places = [folder for place in places or () if os.path.isdir(folder := os.path.join(place, part))]
    return None


def _parsed(module: str, file: str) -> ast.Module:
    try:
        return ast.parse(Path(file).read_bytes())
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise ValueError(f"module {module!r} is no Python: {file}{line}: {error.msg}") from None
    except ValueError as error:  # of zero bytes, before Python 3.11.4
        raise ValueError(f"module {module!r} is no Python: {file}: {error}") from None
    except (OSError, RecursionError, MemoryError) as error:
        raise ValueError(f"module {module!r} cannot be read: {file}: {type(error).__name__}: {error}") from None
