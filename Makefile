SHELL := /bin/bash
BIN := .venv/bin
# A shim may exist without a working uv behind it, so it is asked for its version.
UV := $(shell uv --version >/dev/null 2>&1 && echo uv || echo .uv/bin/uv)

# The tests start hundreds of processes, and each would compile the whole house anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := check
# The checks run one after another, the tests last, so that their summary ends the output.
.NOTPARALLEL:
.PHONY: setup check format format-check lint types layers docs test test-long test-agents bench soak chaos crash-sweep

setup: $(filter .uv/bin/uv,$(UV))
	$(UV) sync --all-extras --locked

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/python -m pip install --quiet uv

check: format-check lint types layers docs test

format:
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

format-check:
	$(BIN)/ruff format --check .

lint:
	$(BIN)/ruff check .

types:
	$(BIN)/mypy

layers:
	$(BIN)/lint-imports

# The theme announces its end of life, May 2027, on every build unless told not to.
docs:
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test:
	$(BIN)/pytest -n 2

test-long:
	$(BIN)/pytest -m long

# Agents of other vendors and the red team: npm brings the programs, in the versions that the profiles were written for.
test-agents: .agents/node_modules
	$(BIN)/pytest -m agents

.agents/node_modules: packaging/agents/package.json packaging/agents/package-lock.json
	mkdir -p .agents
	cp packaging/agents/package*.json .agents/
	npm --prefix .agents install --no-audit --no-fund
	touch $@

bench:
	$(BIN)/python -m bench.growth
	$(BIN)/python -m bench.files
	$(BIN)/python -m bench.engine
	$(BIN)/python -m bench.court
	$(BIN)/python -m bench.sandbox

soak:
	$(BIN)/python -m bench.soak

chaos:
	$(BIN)/python -m bench.chaos --seconds 60 --json -
	$(BIN)/python -m bench.chaos --backend files --seconds 60 --json -
	$(BIN)/python -m bench.chaos --system --seconds 90 --json -
	$(BIN)/python -m bench.hostile --json -

crash-sweep:
	$(BIN)/python -m bench.crash_sweep --json -
	$(BIN)/python -m bench.crash_sweep --agent claude --json -
