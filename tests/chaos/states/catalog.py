"""All scenarios, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.states.contracts import CONTRACTS
from tests.chaos.states.scenarios import RECOVERIES, Scenario
from tests.chaos.states.settling import SETTLING
from tests.chaos.states.sinks import SINKS
from tests.chaos.states.sources import SOURCES
from tests.chaos.states.stateful import STATEFUL

__all__ = ["SCENARIOS"]

SCENARIOS: Mapping[str, Scenario] = {
    s.name: s for s in (*RECOVERIES, *CONTRACTS, *SETTLING, *STATEFUL, *SOURCES, *SINKS)
}
