# make demo    the main job on real input: installs what it needs, runs both jobs, prints the comparison
# make test    all tests that this machine can run; lists what was skipped and why
# make check   lint, format, types
# make bench   measurements against peers; raw data under bench/results
# make docs    the user's documentation as a site, under site/

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
ORACLE := .venv-oracle
BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check
TESTS ?= tests
# Rooms that work without torch are also tested on the oldest and the newest Python.
OTHER_PYTHONS := 3.10 3.13
PURE_TESTS := tests/catalog tests/job tests/instance tests/runs tests/insight

.PHONY: demo test check bench docs format clean
.DELETE_ON_ERROR:

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) -c constraints.txt -e '.[dev,examples]'
	touch $@

$(ORACLE)/ready: constraints-oracle.txt
	$(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python $(PIP) -r constraints-oracle.txt
	touch $@

demo: $(VENV)/ready
	$(BIN)/python examples/digits/demo.py

test: $(VENV)/ready $(ORACLE)/ready
	$(BIN)/python -m pytest $(TESTS)
	@if [ "$(TESTS)" = tests ]; then for version in $(OTHER_PYTHONS); do scripts/test-on-python $$version $(PURE_TESTS) || exit 1; done; fi

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/ready
	$(BIN)/python bench/digits_pairs.py

docs: $(VENV)/ready
	$(BIN)/python $(PIP) -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv* site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
