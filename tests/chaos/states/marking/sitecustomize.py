"""On the Python path of a driver that is recorded: it writes down each named point that it passes."""

from __future__ import annotations

import os


def _install() -> None:
    file = os.environ.get("SLUICE_MARKS")
    if not file:
        return
    from sluice import faults

    real = faults.point

    def marked(name: str) -> None:
        real(name)
        out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(out, f"{name}\n".encode())
        os.close(out)

    faults.point = marked


_install()
