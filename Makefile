# One command each; every one makes its own virtual environment first, if there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# What forks most workers comes first: that takes longer from a process that has imported all
# that the other tests need.
FORKS := tests/engine tests/faults tests/sources tests/properties tests/distributed

.PHONY: demo test lint docs bench soak clean

demo: $(VENV)/.cli
	$(BIN)/dataporter demo --out build/demo

test: lint
	$(BIN)/pytest -n 2 -m "not soak" $(FORKS)
	$(BIN)/pytest -n 2 -m "not soak" $(FORKS:%=--ignore=%)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

# The tests build it as well, elsewhere, and run what it shows. With --quiet, it would not be strict.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

soak: $(VENV)/.dev
	$(BIN)/pytest -n 2 -m soak

clean:
	rm -rf $(VENV) site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

# The package with what it needs, installed again only when its declaration changes.
$(VENV)/.package: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable .
	touch $@

$(VENV)/.cli: $(VENV)/.package
	$(PIP) --editable ".[cli]"
	touch $@

$(VENV)/.dev: $(VENV)/.package
	$(PIP) --editable ".[dev]"
	touch $@
