# Every target works from a clean clone: it first sets up what it needs, and that costs nothing the second time.
# Works with GNU make 3.81 (macOS) and 4.

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
CODE := src tests bench demo scripts examples
# How much longer than in `make test` the randomised tests run in `make soak`.
SOAK ?= 25

# Stamps: each says that a step was done for the files it depends on.
PYTHON_READY := $(VENV)/.python-ready
LOCKED_READY := $(VENV)/.locked-ready
HYP_READY := $(VENV)/.hyp-ready

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup engine demo check test lint unit spark acceptance soak bench docs lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: engine ## Make .venv with hyp in it, check or install Java, fetch the engine's jars
	@echo "Ready: $(BIN)/hyp --help"

demo: engine ## Show rows going in, a kill -9, and every row there once
	@$(BIN)/python demo/run.py

test: lint unit spark acceptance ## Everything that must hold (up to three quarters of an hour)

check: lint unit spark ## What to run before each commit (minutes)

lint: $(HYP_READY) ## ruff and mypy --strict
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)

unit: $(HYP_READY) ## Tests without a JVM
	$(PYTEST) tests/unit

spark: engine ## Tests with Spark
	$(PYTEST) tests/spark

acceptance: engine ## Tests with real processes, killed for real
	$(PYTEST) tests/acceptance

soak: engine ## The randomised tests, much longer (SOAK=25 times)
	HYP_SOAK=$(SOAK) $(PYTEST) -o timeout=0 tests/unit/lake tests/unit/backfill tests/unit/model tests/unit/test_claude_fuzz.py \
		tests/unit/test_codex_fuzz.py tests/acceptance

bench: engine ## Measure against the targets of docs/performance.md
	@$(BIN)/python -m bench.run

docs: $(HYP_READY) ## Renew the parts of docs/ that follow from the code
	@$(BIN)/python -m scripts.reference

lock: $(PYTHON_READY) ## Renew requirements.lock from pyproject.toml
	@$(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet uv
	@# What builds the project is locked too, so that it can be installed without a network.
	printf '%s\n' 'hatchling>=1.27' 'editables>=0.5' | $(BIN)/python -m uv pip compile --quiet --universal \
		--python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade \
		--group dev --output-file requirements.lock pyproject.toml -

clean: ## Remove .venv and everything else that was made here
	rm -rf $(VENV) build dist spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# Java and the jars are looked for each time (it takes a second): they live outside this folder.
engine: $(HYP_READY)
	@$(BIN)/python scripts/ensure_java.py
	@$(BIN)/hyp engine install >/dev/null

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
