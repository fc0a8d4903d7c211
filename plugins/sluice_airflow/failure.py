"""Converts the exit code and the output of a Spark application to a typed error."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from sluice.errors import ExitCode, SluiceError, error_for_exit_code, public

__all__ = ["MARK", "from_exit"]

MARK = "sluice: error: "
"""The start of an application's error message: what happened, then ``  data:`` and ``  next:`` lines."""

_MEND = "the next run finishes a batch that was open, exactly once; committed batches stay"
_LONGEST = 60


def from_exit(code: int | None, output: Sequence[str], *, command: str) -> SluiceError:
    """Return the error with which an application ended: in its own words, or by how it ended.

    Other lines of its output stay in the task's log: an error's text goes into mails, and they may hold a secret.

    Parameters
    ----------
    code
        Its exit code; negative when a signal ended it, None when it is not known.
    output
        The last lines that it printed, stdout and stderr mixed.
    command
        The next command, for a failure that does not name one itself.
    """
    kind = error_for_exit_code(code if code is not None else int(ExitCode.OTHER))
    what, state, next_step = map(public, _last_words(output))  # whole in the log above; an error goes to lineage, too
    return kind(what or _how_it_ended(code), state=state or _MEND, next_step=next_step or command)


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "the Spark application ended, and its exit code is not known"
    number = -code if code < 0 else code - 128
    if code < 0 or 128 < code < 160:
        try:
            return f"the Spark application was ended by {signal.Signals(number).name}"
        except ValueError:
            pass
    if code in set(ExitCode):
        return f"the Spark application ended with exit code {code} ({ExitCode(code).name.lower()})"
    return f"the Spark application ended with exit code {code}"


def _last_words(output: Sequence[str]) -> tuple[str, str, str]:
    """Return what, data and next of the last marked message; empty strings for what is not there."""
    lines = [line.strip() for line in output]
    begin = max((i for i, line in enumerate(lines) if line.startswith(MARK.strip())), default=None)
    if begin is None:
        return "", "", ""
    what = [lines[begin].removeprefix(MARK.strip()).strip()]
    state = next_step = ""
    for line in lines[begin + 1 : begin + _LONGEST]:
        if line.startswith("next:"):
            next_step = line.removeprefix("next:").strip()
            break
        if line.startswith("data:"):
            state = line.removeprefix("data:").strip()
        elif state or not line:
            break  # not a line of the message: it has ended
        else:
            what.append(f"  {line}")
    else:
        if not state:  # no end was found: only the first line certainly belongs to the message
            what = what[:1]
    return "\n".join(what), state, next_step
