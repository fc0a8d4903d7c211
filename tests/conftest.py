pytest_plugins = ["tests.fixtures.kafka"]
