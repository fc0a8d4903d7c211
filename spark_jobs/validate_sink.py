"""The application that spark-submit starts to validate a run again. Exit code 50: verdict ``failed`` or ``error``."""

from __future__ import annotations

from sluice.errors import QualityError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.ledger.events import Judged
from sluice.pipeline import load
from sluice.run.held import FAILED
from sluice.run.verdict import causes
from sluice_spark.engine.logs import set_up
from sluice_spark.engine.session import Parser, run_main, session
from sluice_spark.quality.judge import Judge
from sluice_spark.runs.tables import Tables


def main() -> None:
    set_up()
    parser = Parser(prog="validate_sink.py", description="Validate the rows of a run again.")
    parser.add_argument("--pipeline", required=True, metavar="NAME_OR_PATH")
    parser.add_argument("--run", required=True, help="the id of a run in the ledger")
    args = parser.parse_args()
    pipeline, home, ledger = load(args.pipeline), Home.from_env(), Ledger.open()
    found = ledger.ended_run(pipeline.name, args.run)
    judge = Judge(pipeline, home, args.run)
    judge.warm_up()
    judge.check()
    # the run may have been validated together with an earlier one whose driver died; both are validated again
    runs = (found.judgement or {}).get("runs") or [args.run]
    sink = Tables.of(pipeline, home, ledger.epoch(pipeline.name)).sink
    judgement = judge.settle(ledger, session, sink, runs)
    ledger.decide(pipeline.name, args.run, Judged(verdict=judgement.verdict, judgement=judgement.as_dict()))
    if judgement.verdict in FAILED:
        raise QualityError(
            f"run {args.run!r} of {pipeline.name!r}: verdict {judgement.verdict}: "
            f"{'; '.join(causes(judgement.reasons)[:5])}",
            state="the rows are in the sink; no data was changed",
            next_step=f"see {judgement.data_docs or 'the log above'}",
        )


if __name__ == "__main__":
    run_main(main)
