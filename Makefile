# make run, make test: each makes its own virtual environment, from nothing but python3 and make.
# Another Python:  make test PYTHON=python3.13 VENV=.venv-3.13

PYTHON ?= python3
VENV ?= .venv
UV ?= uv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# One empty file per finished step: a step is repeated only when what it was made from has changed.
CREATED := $(VENV)/.created
DEV := $(VENV)/.dev
BENCH := $(VENV)/.bench
SYSTEM := $(VENV)/.system

# Two processes, each with servers of its own; a file's tests stay together, and the files are taken in their order, as
# the longest have few tests and would come last. For one process: make test WORKERS=
WORKERS ?= --numprocesses=2 --dist=loadfile --no-loadscope-reorder

# Exit code 1: tests failed. A few of them may run again, alone; anything else is an error of the run itself.
RERUN = { test $$? -eq 1 && $(BIN)/python -m tests.rerun_failed; }

CORE := src/abate/decide/*,src/abate/schedule/*,src/abate/admit/*,src/abate/call/*

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test check bench storm stress pictures mutation requirements clean

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(CREATED) ## Show abate at work (needs no download: the core has no dependencies)
	PYTHONPATH=src $(BIN)/python -m abate demo

test: check ## Everything that must pass: make check, the tests, the coverage of the core
	$(BIN)/coverage erase
	export COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml; \
		$(BIN)/python -m pytest --cache-clear $(WORKERS) --ignore=tests/sim || $(RERUN)
	# simulations are long loops, which take twice as long when measured
	$(BIN)/python -m pytest --cache-clear $(WORKERS) tests/sim || $(RERUN)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
	$(BIN)/coverage report --include='$(CORE)' --fail-under=100

check: $(DEV) ## Style, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo

bench: $(BENCH) ## abate beside its peers, as ratios
	$(BIN)/python benchmarks/calls.py
	$(BIN)/python benchmarks/budget.py
	$(BIN)/python benchmarks/shelter.py
	$(BIN)/python benchmarks/queues.py
	$(BIN)/python benchmarks/stores.py
	$(BIN)/python benchmarks/backlog.py
	$(BIN)/python benchmarks/http_clients.py
	$(BIN)/python benchmarks/latency.py
	$(BIN)/python benchmarks/conflicts.py
	$(BIN)/python benchmarks/sim.py
	$(BIN)/python benchmarks/regret.py
	$(BIN)/python benchmarks/observe.py
	$(BIN)/python benchmarks/page.py
	$(BIN)/python benchmarks/queue_peers/run.py
	$(BIN)/python benchmarks/audit.py

storm: $(BENCH) ## Outages, on real sockets: abate beside its peers, and without each of its parts (15 minutes)
	$(BIN)/python benchmarks/storm/run.py --short --minutes 12
	$(BIN)/python benchmarks/tenants.py 4 1

stress: $(DEV) ## Threads, tasks, forks, signals, the collector at random points, on every store (10 minutes)
	$(BIN)/python benchmarks/stress/run.py

pictures: $(DEV) ## Draw the pictures of the docs anew
	for file in docs/defaults/*.toml; do \
		$(BIN)/abate sim $$file --picture docs/images/defaults-$$(basename $$file .toml).png || exit 1; done
	$(BIN)/python benchmarks/shelter_picture.py
	$(BIN)/abate demo --picture docs/images/demo.svg
	$(BIN)/python examples/live_page.py --screenshot docs/images/page.png

mutation: $(DEV) ## Break schedule/ and admit/ on purpose, list what no test noticed (slow)
	$(BIN)/python benchmarks/mutation.py

requirements: ## Pin requirements/*.txt anew (needs uv; newer versions: UPGRADE=--upgrade)
	@command -v $(UV) >/dev/null || { echo "make requirements needs uv on the PATH, or UV=path/to/uv" >&2; exit 1; }
	cd requirements && for set in dev bench; do \
		$(UV) pip compile $(UPGRADE) --quiet --universal --python-version 3.11 --generate-hashes \
			--no-emit-index-url --no-annotate --no-header $$set.in --output-file $$set.txt || exit 1; \
	done
	@! grep -n '://' requirements/*.txt || { echo "a pinned file names a host" >&2; exit 1; }

clean: ## Remove everything that was made here
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "abate needs Python 3.11 or newer, and '$(PYTHON)' is older or missing. Name one: PYTHON=python3.13" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PYTHON)' can't make virtual environments: install its venv package (Debian: python3-venv)" >&2; \
		exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(SYSTEM): $(CREATED) requirements/system
	requirements/system
	@touch $@

$(DEV): $(SYSTEM) requirements/dev.txt pyproject.toml
	$(PIP) install --require-hashes -r requirements/dev.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(BENCH): $(DEV) requirements/bench.txt
	$(PIP) install --require-hashes -r requirements/bench.txt
	@touch $@

