"""What the log has of a query that ended with an error: where it broke, and nothing of what is told anyway."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from sluice.errors import QualityError, SluiceError
from sluice_spark.runs import batches
from sluice_spark.runs.batches import MicroBatches


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (ValueError("no rate for EUR"), True),
        (QualityError("judged failed", state="nothing", next_step="fix it"), False),
    ],
)
def test_a_traceback_is_logged_where_the_message_says_no_more(
    monkeypatch: pytest.MonkeyPatch, error: Exception, logged: bool
) -> None:
    told = mock.Mock()
    monkeypatch.setattr(batches, "logger", told)
    anything: Any = mock.MagicMock()
    anything.signs = ()
    stream = anything.stream.return_value.writeStream.outputMode.return_value.foreachBatch.return_value
    started = stream.queryName.return_value.option.return_value.trigger.return_value.start.return_value
    started.awaitTermination.side_effect = error
    made = MicroBatches(*[anything] * 7, max_records=5)
    with pytest.raises(SluiceError, match=str(error.args[0]).split(chr(10))[0]):
        made.stream(anything, lambda *_: None, headers=False, max_records=5)
    assert [call.kwargs["exc_info"] for call in told.error.call_args_list] == [error] * logged
