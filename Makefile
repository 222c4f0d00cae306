# One command each; every one makes its own virtual environment first, if there is none.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --disable-pip-version-check --constraint $(CONSTRAINTS)

# $(1) says what $(2) does. pip may be silent for minutes while it resolves, downloads or unpacks:
# a line every eight seconds says that it is still at work. Its loop ends with this shell.
define SAYING
@echo "$(1) ..."
@while sleep 8 > /dev/null 2>&1 && kill -0 $$$$ 2> /dev/null; do echo "... still: $(1)"; done & \
	$(2); status=$$?; kill $$! 2> /dev/null; exit $$status
endef

# What needs large packages comes last: workers are forked in half the time from a process that has
# not imported them. `src` has doctests, of which some show trainers.
FRAMEWORKS := tests/cluster tests/datasets tests/documents tests/examples tests/fetch/test_arrow.py \
	tests/golden tests/sources/lanes/test_hf_streams.py tests/tools tests/trainers tests/training src

# The rooms whose tests are worth most in a minute. Of these, what starts a process is skipped.
QUICK := tests/law tests/fetch tests/converters tests/strategies $(wildcard tests/sources/*.py) \
	tests/golden/test_golden_states.py tests/test_arguments.py tests/loader/test_options.py \
	tests/test_samplers.py tests/test_sampler_ranks.py

.PHONY: demo quick test tests coverage inline lint docs pictures bench soak mutants release-check dist clean

demo: $(VENV)/.cli
	$(BIN)/dataporter demo --out build/demo

# For the loop of edit and try: under a minute, and no test starts a process.
quick: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -n 2 --no-processes -r fE $(QUICK)

test: lint tests

# Failures are not forgiven: only tests whose mark says why run once more, and are listed.
TESTED := $(BIN)/pytest --dist worksteal -m "not soak"

# The tests alone: the tools of `lint` are pinned, and need not run under every Python. Of three
# workers on two cores, one may wait for what its test has started.
tests: $(VENV)/.dev
	$(TESTED) -n 3 tests $(FRAMEWORKS:%=--ignore=%)
	$(TESTED) -n 3 $(FRAMEWORKS)

# All tests again, watched: which lines of src/ run, in workers too. build/coverage/html shows them.
coverage: $(VENV)/.dev
	$(TESTED) -n 3 --cov --cov-report= tests $(FRAMEWORKS:%=--ignore=%)
	$(TESTED) -n 3 --cov --cov-append --cov-report=term:skip-covered --cov-report=html \
		$(FRAMEWORKS)

# What has to work on any system: the package is imported, and loaders without workers.
inline: $(VENV)/.dev
	$(BIN)/python -c "import dataporter"
	$(BIN)/pytest --no-processes -r fE $(QUICK)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	if command -v actionlint > /dev/null; then actionlint; fi

# The tests build it as well, elsewhere, and run what it shows. With --quiet, it would not be strict.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Records the commands that the home page shows, and draws its charts. For after a change of them.
pictures: $(VENV)/.dev
	$(BIN)/python docs/pictures/make.py

# All tables; the races among loaders also into build/bench.json.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

soak: $(VENV)/.dev
	$(BIN)/pytest -n 2 -m soak

# Do the tests notice? ROOMS and N say in which rooms how many random changes are made.
ROOMS ?= law sources fetch engine system shards views
N ?= 40
mutants: $(VENV)/.dev
	$(BIN)/python tests/mutants.py --rooms $(ROOMS) -n $(N)

# Before a release: TAG=v1.2.3 is what the package, the changelog and the golden states say.
release-check: $(VENV)/.dev
	$(BIN)/python .github/release_check.py "$(TAG)"

dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache \
		.ruff_cache

# The package with what it needs, installed again only when its declaration changes.
$(VENV)/.package: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(call SAYING,Installing torch (this can take minutes),$(PIP) torch)
	$(call SAYING,Installing dataporter,$(PIP) --editable .)
	@touch $@

$(BIN)/python:
	$(call SAYING,Making a virtual environment in $(VENV),$(PYTHON) -m venv $(VENV))

# Each extra beside the package: for the command line, for the site, for tests.
$(VENV)/.cli $(VENV)/.docs $(VENV)/.dev: $(VENV)/.%: $(VENV)/.package
	$(call SAYING,Installing the packages of the $* extra,$(PIP) --editable ".[$*]")
	@touch $@
