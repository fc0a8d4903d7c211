import logging

pytest_plugins = [
    "tests.fixtures.books",
    "tests.fixtures.cluster",
    "tests.fixtures.kafka",
    "tests.fixtures.runs",
    "tests.fixtures.node",
    "tests.fixtures.postgres",
    "tests.fixtures.spark",
    "tests.fixtures.wal",
]


def pytest_unconfigure() -> None:
    """Let the summary be the last word: a client whose broker ended before it goes on complaining to its log."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
