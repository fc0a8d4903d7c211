"""Before a run reads anything: the ledger, the checkpoint and the sink must tell one story.

A driver can die between any two steps, so one of the three may be a step behind. Checkpoint and sink hold the truth;
the ledger is brought up to it. What no crash can explain (a checkpoint or a table that was taken back to an older
state) is refused: going on would lose or double records.
"""

from __future__ import annotations

from sluice.checkpoint import Checkpoint
from sluice.errors import CheckpointError
from sluice.ledger import Lease, Ledger
from sluice.ranges import RangeAccount
from sluice_spark.log import logger
from sluice_spark.quarantine import SCHEMA
from sluice_spark.sinks.delta import DeltaSink
from sluice_spark.sinks.staged import read_back

__all__ = ["reconcile"]

_UNTOUCHED = "nothing was read or written now; checkpoint, sink and ledger are as they were"


def reconcile(
    ledger: Ledger, lease: Lease, *, epoch: int, checkpoint: Checkpoint, sink: DeltaSink, quarantine: DeltaSink
) -> None:
    """Bring quarantine and ledger up to what checkpoint and sink hold, and close runs whose driver died.

    Calling it twice changes nothing the second time.

    Raises
    ------
    CheckpointError
        When checkpoint, sink and ledger contradict each other in a way that no crash leaves behind.
    """
    name = lease.pipeline
    planned, done = checkpoint.planned(), checkpoint.committed()
    last_planned, last_done = (planned or [-1])[-1], (done or [-1])[-1]
    held = sink.version()
    if held > last_planned:
        raise _contradiction(
            f"the sink {sink.path} holds batch {held}, but the checkpoint {checkpoint.path} was never planned beyond "
            f"{last_planned}: it was removed or taken back",
            "put the checkpoint back from a copy, or move both the sink and the checkpoint away to begin anew",
        )
    if held < last_done:
        raise _contradiction(
            f"the checkpoint {checkpoint.path} has committed batch {last_done}, but the sink {sink.path} holds only up "
            f"to {held}: it was removed or taken back",
            "put the table back, or move both the sink and the checkpoint away to begin anew",
        )
    known = ledger.last_batch(name, epoch)
    upto = known.batch if known else -1
    if upto > held:
        raise _contradiction(
            f"the ledger has batch {upto} committed, but the sink {sink.path} holds only up to {held}",
            "put table and checkpoint back together, or move them away to begin anew",
        )
    # the table's history is read only when the ledger is behind
    for note in reversed(list(sink.notes(newer_than=upto)) if held > upto else []):
        if note.get("refused"):
            staged = read_back(quarantine.path, note["refused"], offsets=False)
            quarantine.commit(staged, SCHEMA, note["version"], {"run": note["run"]})
        accounts = [RangeAccount.from_dict(a) for a in note["accounts"]]
        ledger.batch_committed(lease, epoch=epoch, batch=note["version"], accounts=accounts, run=note["run"])
        logger.info(
            "reconciled: batch %d of run %s is in the sink; entered into the ledger", note["version"], note["run"]
        )
        upto = note["version"]
    if upto < held:
        raise _contradiction(
            f"the sink {sink.path} holds batches {upto + 1} to {held}, for which neither the ledger nor the table's "
            "history accounts",
            "put the ledger back from a copy",
        )
    _same_end(ledger, name, epoch, checkpoint)
    for row in ledger.runs(name, state="open", limit=1000):
        if row.run != lease.holder.run:
            ledger.run_closed(lease, state="abandoned", run=row.run, error={"what": "its driver died or was fenced"})
            logger.info("run %s was never closed: its driver died. Its committed batches stay", row.run)


def _same_end(ledger: Ledger, name: str, epoch: int, checkpoint: Checkpoint) -> None:
    known = ledger.last_batch(name, epoch)
    if known is None or known.batch not in checkpoint.planned():
        return
    ends = checkpoint.end_of(known.batch)
    for account in ledger.accounts(name, batch=known):
        r = account.range
        if ends.get(r.topic, {}).get(r.partition) != r.end:
            raise _contradiction(
                f"batch {known.batch} ends at {r.end} in {r.topic}-{r.partition} for the ledger, at "
                f"{ends.get(r.topic, {}).get(r.partition)} for the checkpoint {checkpoint.path}",
                "this is another pipeline's checkpoint or a changed one: put the right one back",
            )


def _contradiction(what: str, way_out: str) -> CheckpointError:
    return CheckpointError(what, state=_UNTOUCHED, next_step=way_out)
