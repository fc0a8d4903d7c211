pytest_plugins = ["tests.fixtures.kafka", "tests.fixtures.runs"]
