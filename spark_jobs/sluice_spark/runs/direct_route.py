"""The direct route: batches are read from the source and written to the sink."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from sluice.sources.state import ends
from sluice_spark.engine.code_generation import compiled
from sluice_spark.engine.logs import logger
from sluice_spark.runs.batches import MicroBatches, QueryShape
from sluice_spark.runs.forecast import Forecast
from sluice_spark.runs.tables import Tables
from sluice_spark.strategies.base import Batch

__all__ = ["DirectRoute"]


@dataclass(frozen=True)
class DirectRoute:
    """Processes what the source holds, straight into the sink."""

    batches: MicroBatches

    def drain(self, tables: Tables) -> None:
        """Process what the source holds now, then stop.

        Raises
        ------
        SluiceError
            By type. Committed batches stay, and the next run reads the open batch again.
        """
        context, strategy = self.batches.context, self.batches.context.strategy
        writer = context.writer(self.batches.spark, tables)
        arrow = context.arrow(self.batches.spark, writer, context.recovery)
        writer = replace(writer, arrow=arrow)
        sweep = tables.left_over()
        entered = context.ledger.offsets.last_batch(context.pipeline.name, tables.epoch.number)
        source = self.batches.records(tables)
        limit = self.batches.limit(arrow=arrow is not None)
        tell = context.teller(self.batches.lease)
        forecast = Forecast(self.batches.reader, tables, limit, ends(self.batches.states))

        def on_batch(records: DataFrame, number: int) -> None:
            ranges = tuple(tables.checkpoint.ranges_of(number))
            if entered is not None and number <= entered.batch:
                # a driver died between the sink's commit and Spark's; reconciling recorded the batch
                logger.info("batch %d is already in the sink", number)
                return
            if arrow is not None and not arrow.works:
                compiled(records, self.batches.spark)
            elif arrow is not None:
                arrow.expect(lambda: ((tables.batch_name(n), coming) for n, coming in forecast.after(number)))
            with strategy.hold(records, source, tell, later=arrow is not None) as held:
                frame = held.frame
                if not any(map(len, ranges)):
                    frame = records  # nothing is in it: nothing can be read again, or has to be held
                elif arrow is not None and arrow.works:
                    frame = None  # no code is generated for it
                batch = Batch(tables.batch_name(number), ranges, held.source, frame, self.batches.spark)
                self.batches.process(tables, writer, number, batch, sweep=number in sweep)

        try:
            self.batches.stream(
                tables,
                QueryShape(on_batch, executed=arrow is None),
                max_records=limit,
                headers=strategy.headers,
                forecast=forecast,
            )
        finally:
            if arrow is not None:
                arrow.close()
