"""How far a pipeline is behind the broker. Pure: positions, the broker's answers and past runs in; lag out.

Unknown is ``None``, never zero. Statuses follow from the pipeline's runs, not from a window of commits: between two
runs the position does not move, and that is normal.
"""

from sluice.lag.backlog import Backlog
from sluice.lag.limits import Limits
from sluice.lag.measurement import Ages, Recorded, measure
from sluice.lag.partition import PartitionLag
from sluice.lag.past import PastRun
from sluice.lag.status import Status
from sluice.sources.state import FirstUnread, Key

__all__ = [
    "Ages", "Backlog", "FirstUnread", "Key", "Limits", "PartitionLag", "PastRun", "Recorded", "Status", "measure",
]  # fmt: skip
