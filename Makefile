# make demo | make test | make check | make bench — each builds the virtual environment that it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TOOLS  := $(VENV)/.tools-installed
PERF   := $(VENV)/share/perf_analyzer/perf_analyzer

.DEFAULT_GOAL := venv
.PHONY: venv demo test check bench clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Partita needs Python 3.11 or newer; try make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]"
	touch $@

# What tests and checks need besides: torch among it, which the demo does without.
$(TOOLS): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev
	touch $@

demo: $(STAMP)
	$(BIN)/partita demo

# Out of an old wheel; where it cannot be had the tests that need it are skipped.
$(PERF): | $(TOOLS)
	-$(BIN)/python -m tests.perf_analyzer

# Two files of tests at a time, as much of a test is waiting; those marked `alone` wait for the others to pause.
test: check | $(PERF)
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder $(PYTEST_ARGS)

check: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(TOOLS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
