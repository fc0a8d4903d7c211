# Sluice: the commands of the checkout. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3.11
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup lock demo demo-sources down clean test test-unit chaos chaos-states mutants bench lint check-tools

help: ## List the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

check-tools:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is missing. Debian: apt-get install python3.11 python3.11-venv (or set PYTHON=/path/to/python3.11)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$(PYTHON) is not Python 3.11: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@command -v java >/dev/null || { echo "A Java 17 (or newer) runtime is missing. Debian: apt-get install openjdk-17-jre-headless" >&2; exit 1; }
	@java -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' || { echo "Java 17 or newer is needed. Debian: apt-get install openjdk-17-jre-headless" >&2; exit 1; }

# uv is used when it is there, and bootstrapped by pip into the environment when it is not
$(STAMP): requirements.txt pyproject.toml | check-tools
	@echo "installing into $(VENV)" >&2
	@if command -v uv >/dev/null; then uv venv -q --allow-existing --python $(PYTHON) $(VENV); \
	 else $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install -q uv==0.13.9; fi
	@UV=$$(command -v uv || echo $(BIN)/uv); \
	 $$UV pip install -q --compile-bytecode --python $(BIN)/python -r requirements.txt && \
	 $$UV pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q dags demo include plugins spark_jobs
	@touch $@

setup: $(STAMP) ## Install everything into .venv and fetch the jars
	@$(BIN)/python -m sluice.launch.jars

lock: $(STAMP) ## Compile requirements.in into requirements.txt
	@UV=$$(command -v uv || echo $(BIN)/uv); \
	 $$UV pip compile -q --python $(BIN)/python --no-emit-index-url --generate-hashes --custom-compile-command 'make lock' requirements.in -o requirements.txt

demo: $(STAMP) ## From nothing to a finished, validated run on real input; the UI stays up
	@$(BIN)/python -m sluice_demo.demo up

demo-sources: $(STAMP) ## Files into PostgreSQL, a queue into Delta and on into Kafka; needs postgresql and redis-server, no Airflow
	@$(BIN)/python -m sluice_demo.sources up

down: ## End what the demos started
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m sluice_demo.sources down; $(BIN)/python -m sluice_demo.demo down; fi

clean: down ## Remove what was made here: var/, .venv, caches
	rm -rf var $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

test: $(STAMP) ## All tests with real Kafka, Spark and Airflow, but the longest of the crash tests: those are in make chaos; make test [WORKERS=0]
	@$(BIN)/python -m sluice.local.archive >/dev/null
	@$(BIN)/python -m pytest -q -n $(WORKERS)

test-unit: $(STAMP) ## The tests that need no JVM and no broker: a minute
	@$(BIN)/python -m pytest -q tests/unit

chaos: $(STAMP) ## All crash tests, 20 random kills a strategy, then chaos-states; goes on where it was stopped: make chaos [SHARD=3/8] [SLUICE_CHAOS_KILLS=N] [SLUICE_CHAOS_SEED=S]
	@$(BIN)/python -m sluice.local.archive >/dev/null
	@SLUICE_CHAOS_KILLS=$${SLUICE_CHAOS_KILLS:-20} SLUICE_CHAOS_FOLDER=$${SLUICE_CHAOS_FOLDER:-var/chaos} \
	 SLUICE_CHAOS_SHARD=$(SHARD) $(BIN)/python -m pytest -q -m "chaos or long"
	@SLUICE_CHAOS_SHARD=$(SHARD) $(BIN)/python -m tests.chaos.states $(ARGS)

chaos-states: $(STAMP) ## Resume every recorded crash state, and kill at every point of every recorded run: make chaos-states [SHARD=3/8] [ARGS="--only wal-many --limit 50"]
	@$(BIN)/python -m sluice.local.archive >/dev/null
	@SLUICE_CHAOS_SHARD=$(SHARD) $(BIN)/python -m tests.chaos.states $(ARGS)

mutants: $(STAMP) ## Break the product on purpose in 30 places, one at a time, in a copy: make mutants [ARGS="--only fence --whole"]
	@$(BIN)/python -m tests.mutants $(ARGS)

bench: $(STAMP) ## Whole cold processes side by side: make bench [ARGS="--quick --only wal"]
	@$(BIN)/python -m tests.bench.bench $(ARGS)

lint: $(STAMP) ## Format, lint, types, import contracts
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports
