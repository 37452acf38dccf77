SHELL := /bin/bash
BIN := .venv/bin
# The command uv may be a shim without a working uv, so run it once.
UV := $(shell uv --version >/dev/null 2>&1 && echo uv || echo .uv/bin/uv)

# The tests start hundreds of processes. Without stored bytecode each of them would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := check
.NOTPARALLEL:
# The parts of the proof, cheapest first; tests/tiers.py says why each is not in the gate.
PARTS := web installed pages variants timing second_store kafka benches agents long mutants_files mutants_postgres sweep_files sweep_postgres sweep_merged_files sweep_merged_postgres sweep_claude
# These parts measure time, so no other test runs beside them.
ALONE := timing benches long
PART := $(PARTS)
# Twice as many workers as cores, because a test waits for a third of its time, mostly for processes that it has started.
WORKERS := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) * 2)))
# Tests create and sync hundreds of thousands of small files, which is much faster in memory. Each worker needs 1.5 GB.
MEMORY := $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -gt $$((1500000 * $(WORKERS))) 2>/dev/null && echo /dev/shm)
IN_MEMORY := $(if $(MEMORY),TMPDIR=$(MEMORY))
.PHONY: setup check static format format-check lint types layers docs test test-web test-agents proof bench soak chaos crash-sweep

setup: $(filter .uv/bin/uv,$(UV))
	$(UV) sync --all-extras --locked

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/python -m pip install --quiet uv

# The slow static checks run at the same time as the tests, and print their output only if they fail.
check: format-check lint
	@setsid $(MAKE) --no-print-directory static & static=$$!; \
	trap 'kill -- -$$static 2>/dev/null' EXIT; \
	$(MAKE) --no-print-directory test; tests=$$?; \
	wait $$static && exit $$tests

static:
	@said=$$($(MAKE) --no-print-directory --keep-going types layers docs 2>&1) || { echo "$$said"; exit 1; }

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

# Without this variable the theme prints on every build that its support ends in May 2027.
docs:
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test:
	$(IN_MEMORY) $(BIN)/pytest -n $(WORKERS)

# The pages in Chromium, as people use them.
test-web: proof-web

# Claude Code and the agents of other vendors, with a model that follows a script.
test-agents: proof-agents

# All tests that are not in the gate, or one part of them: make proof PART=pages.
proof:
	@$(MAKE) --no-print-directory --keep-going $(PART:%=proof-%)

proof-%:
	@SECONDS=0; $(if $(filter $*,$(ALONE)),$(BIN)/pytest,$(IN_MEMORY) $(BIN)/pytest -n $(WORKERS)) -m $*; code=$$?; \
	echo "proof, part $*: exit $$code after $$((SECONDS / 60)) min $$((SECONDS % 60)) s"; exit $$code

# npm installs the agents of other vendors, in the versions that the profiles were written for.
proof-agents: .agents/node_modules

.agents/node_modules: packaging/agents/package.json packaging/agents/package-lock.json
	mkdir -p .agents
	cp packaging/agents/package*.json .agents/
	npm --prefix .agents install --no-audit --no-fund
	touch $@

bench:
	$(BIN)/python -m bench.growth
	$(BIN)/python -m bench.race --json -
	$(BIN)/python -m bench.files
	$(BIN)/python -m bench.engine
	$(BIN)/python -m bench.court
	$(BIN)/python -m bench.sandbox
	$(BIN)/python -m bench.startup --json -

soak:
	$(BIN)/python -m bench.soak

chaos:
	$(BIN)/python -m bench.chaos --seconds 60 --json -
	$(BIN)/python -m bench.chaos --backend files --seconds 60 --json -
	$(BIN)/python -m bench.chaos --transport kafka --seconds 90 --json -
	$(BIN)/python -m bench.two_stores --json -
	$(BIN)/python -m bench.failover --json -
	$(BIN)/python -m bench.failover --asynchronous --json -
	$(BIN)/python -m bench.chaos --system --seconds 90 --json -
	$(BIN)/python -m bench.hostile --json -
	$(BIN)/python -m bench.trading --json -
	$(BIN)/python -m bench.stream --json -

crash-sweep:
	$(BIN)/python -m bench.crash_sweep --json -
	$(BIN)/python -m bench.crash_sweep --agent claude --json -
	$(BIN)/python -m bench.crash_sweep --course merged --json -
