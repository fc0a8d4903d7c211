"""What the second demo says when it cannot begin, and when something did not come out as it went in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sluice.errors import ConfigError, SluiceError
from sluice.local import chain
from sluice.local.servers import Postgres, Redis


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    return tmp_path


def test_missing_servers_are_named_with_their_packages_and_nothing_is_made(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for server in (Postgres, Redis):
        monkeypatch.setattr(server, "program", lambda _: None)
    with pytest.raises(ConfigError, match=r"PostgreSQL and Redis are not installed") as refused:
        chain.Chain().up()
    assert "apt-get install postgresql redis-server" in str(refused.value)
    assert list(home.iterdir()) == []


def test_a_row_that_is_doubled_or_missing_is_an_error(home: Path) -> None:
    demo = chain.Chain()
    demo._compare("it", Counter({(1,): 1}), Counter({(1,): 1}))
    for out in ({(1,): 2}, {}, {(2,): 1}):
        with pytest.raises(SluiceError, match="is not what went in"):
            demo._compare("it", Counter(out), Counter({(1,): 1}))


def test_down_of_what_is_not_there_is_no_error(home: Path) -> None:
    assert chain.main(["down"]) == 0
