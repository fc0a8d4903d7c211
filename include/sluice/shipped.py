"""The files that come with the packages: in a checkout or in an installed wheel.

A checkout has them in its own folders. A wheel has them below ``sluice/data`` under the same names
(``hatch_build.py``).
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["CHECKOUT", "base", "shipped"]

_PACKAGE = Path(__file__).resolve().parent
_DATA = _PACKAGE / "data"

CHECKOUT: Path | None = None if _DATA.is_dir() else _PACKAGE.parents[1]
"""The checkout that this package runs from (``pip install -e .``); None if it was installed from a wheel."""


def shipped(name: str) -> Path:
    """Return the path of a file or folder that comes with the packages.

    Parameters
    ----------
    name
        Its path in a checkout, such as ``spark_jobs/job.py``.
    """
    return (CHECKOUT or _DATA) / name


def base() -> Path:
    """Return the folder to which relative paths in settings are relative.

    It is the checkout, wherever a command was started; without one, the working directory, never ``site-packages``.
    """
    return CHECKOUT or Path.cwd()
