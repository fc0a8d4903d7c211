"""The command line: tables for people by default, ``--json`` for programs. The operators call the same code."""

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command line: what ``sluice`` calls."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing has begun, so that Ctrl-C needs no traceback of imports
    from sluice.cli.app import main as command

    signal.signal(signal.SIGINT, signal.default_int_handler)
    command()
