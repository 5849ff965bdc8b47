# Every target works from a clean clone: it first sets up what it needs, and that costs nothing the second time.
# Works with GNU make 3.81 (macOS) and 4.

VENV := .venv
BIN := $(VENV)/bin
# The tests start thousands of Python processes: let each find its modules compiled.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# Runs a failed test once more, alone, and names it; lists the slowest tests.
TESTS := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m scripts.run_tests --durations 10
CODE := src tests bench demo scripts examples
# How long `make soak` runs.
SOAK_HOURS ?= 1
# Where `make real-clients` puts them.
REAL_CLIENTS ?= $(or $(TMPDIR),/tmp)/hypaware-real-clients

# Stamps: each says that a step was done for the files it depends on.
PYTHON_READY := $(VENV)/.python-ready
LOCKED_READY := $(VENV)/.locked-ready
HYP_READY := $(VENV)/.hyp-ready

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup engine chromium shells demo team check test forget-flaky lint unit browser spark acceptance real-clients soak
.PHONY: mutants bench report screenshots docs dist dist-check examples lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: engine ## Make .venv with hyp in it, check or install Java, fetch the engine's jars
	@echo "Ready: $(BIN)/hyp --help"

demo: engine ## The whole story in two minutes, in a temporary home (DEMO_HISTORY=own: your sessions; DEMO_KEEP=1)
	@$(BIN)/python -m demo $(if $(DEMO_HISTORY),--history $(DEMO_HISTORY)) $(if $(DEMO_KEEP),--keep)

team: engine ## A team's lake on this machine until Ctrl-C: PostgreSQL, S3, a Spark cluster, two receivers, a flusher
	@$(BIN)/python -m demo.team

test: forget-flaky lint unit browser spark acceptance ## Everything that must hold (up to half an hour)
	@if [ -s .flaky-tests ]; then echo "Flaky tests, each needs its cause found:"; cat .flaky-tests; fi

forget-flaky:
	@rm -f .flaky-tests

check: lint unit spark ## What to run before each commit (minutes)

lint: $(HYP_READY) ## ruff and mypy --strict
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)

# Unit tests wait for processes and disks half of their time, so there are more workers than cores.
WORKERS = $(shell $(BIN)/python -c 'import os; print(os.cpu_count() * 3 // 2)' 2>/dev/null || echo auto)

unit: $(HYP_READY) shells ## Tests without a JVM, on all cores
	$(TESTS) -n $(WORKERS) --dist worksteal tests/unit

browser: chromium engine ## Tests of the page in Chromium (installed if missing and possible without a prompt, else skipped)
	$(TESTS) -n auto --dist loadfile tests/acceptance/page

spark: engine ## Tests with Spark, two files at a time; each worker has a Spark session that its files share
	$(TESTS) -n 2 --dist loadfile -o timeout=1200 tests/spark

acceptance: engine ## Tests with real processes, killed for real, two files at a time (each starts engines of its own)
	$(TESTS) -n 2 --dist loadfile -o timeout=1200 -m 'not real_clients' --ignore=tests/acceptance/page tests/acceptance

real-clients: engine ## Claude Code, Codex and OpenCode from npm, through the gateway to a stub
	npm install --silent --no-audit --no-fund --prefix $(REAL_CLIENTS) \
		@anthropic-ai/claude-code @openai/codex opencode-ai
	HYP_REAL_CLIENTS=$(REAL_CLIENTS) $(PYTEST) -m real_clients tests/acceptance

soak: engine ## Kill, suspend, cut off and fill up everything for SOAK_HOURS=1, with random numbers; summary for the report
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.soak --hours $(SOAK_HOURS)

mutants: $(HYP_READY) ## Find small mistakes that no test notices, in the modules that keep the promises (hours; MUTANTS="state.ledger --every 5")
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.mutation $(MUTANTS)

bench: engine ## Measure against the targets of docs/performance.md
	@$(BIN)/python -m bench.run

report: engine ## Measure everything, next to agentsview and ccusage, and write docs/report.md (an hour; REPORT="--scale 0.2 --only peers")
	@$(BIN)/python -m bench.report $(REPORT)

screenshots: chromium ## Renew the pictures of the page in docs/images, from a made-up history
	@$(BIN)/python -m scripts.screenshots

docs: $(HYP_READY) ## Renew the parts of docs/ that follow from the code
	@$(BIN)/python -m scripts.reference

dist: $(HYP_READY) ## Build wheel, sdist, SBOM and hashes of the last commit into dist/, reproducibly
	@$(BIN)/python -m scripts.dist

dist-check: engine ## Install the wheel with pip into an empty environment with an empty cache, and run it there (network)
	HYP_DIST_CHECK=1 $(PYTEST) -s tests/acceptance/test_wheel.py

examples: engine ## Run the examples for notebooks, dbt and other tools, with their packages in an environment of its own (network)
	$(BIN)/python -m venv $(VENV)/examples
	$(VENV)/examples/bin/python -m pip install --quiet --disable-pip-version-check -r examples/notebooks/requirements.txt
	$(BIN)/python -c "import site; print(*site.getsitepackages(), '$(CURDIR)/src', sep='\n')" > \
		$$(echo $(VENV)/examples/lib/python*/site-packages)/hypaware.pth
	HYP_EXAMPLES_PYTHON=$(CURDIR)/$(VENV)/examples/bin/python $(PYTEST) tests/acceptance/test_examples.py

lock: $(PYTHON_READY) ## Renew requirements.lock from pyproject.toml
	@$(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet uv
	@# What builds the project is locked too, so that it can be installed without a network.
	printf '%s\n' 'hatchling>=1.27' 'editables>=0.5' | $(BIN)/python -m uv pip compile --quiet --universal \
		--python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade \
		--all-extras --group dev --output-file requirements.lock pyproject.toml -

clean: ## Remove .venv and everything else that was made here
	rm -rf $(VENV) build dist spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# Java and the jars are looked for each time (it takes a second): they live outside this folder.
engine: $(HYP_READY)
	@$(BIN)/python scripts/ensure_java.py
	@$(BIN)/hyp engine install >/dev/null

# Only the tests of the page and their pictures need it.
chromium: $(HYP_READY)
	@$(BIN)/python -m scripts.ensure_chromium

# Only the tests of completion need them.
shells: $(HYP_READY)
	@$(BIN)/python -m scripts.ensure_shells

$(PYTHON_READY): scripts/make-venv.sh
	@sh scripts/make-venv.sh $(VENV)
	@touch $@

$(LOCKED_READY): requirements.lock $(PYTHON_READY)
	@echo "Installing what requirements.lock names (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

$(HYP_READY): pyproject.toml $(LOCKED_READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
