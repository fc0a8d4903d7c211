pytest_plugins = ["tests.fixtures.kafka", "tests.fixtures.runs", "tests.fixtures.spark"]
