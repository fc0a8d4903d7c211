"""How far a pipeline is behind the broker. Pure: positions, the broker's answers and the ledger's past in; lag out.

What is not known is ``None``, never zero. A pipeline is judged by its own cadence, its runs, and not by a window of
commits: between two runs its position stands still, and that is no sign of anything.
"""

from sluice.lag.backlog import Backlog
from sluice.lag.limits import Limits
from sluice.lag.measurement import measure
from sluice.lag.partition import PartitionLag
from sluice.lag.past import PastRun
from sluice.lag.status import Status
from sluice.sources.state import FirstUnread, Key

__all__ = ["Backlog", "FirstUnread", "Key", "Limits", "PartitionLag", "PastRun", "Status", "measure"]
