pytest_plugins = [
    "tests.fixtures.cluster",
    "tests.fixtures.kafka",
    "tests.fixtures.runs",
    "tests.fixtures.node",
    "tests.fixtures.postgres",
    "tests.fixtures.spark",
]
