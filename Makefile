# Two goals do everything on a fresh Debian or Ubuntu machine:  make testbed run   and   make test
# "make testbed up" has two words for make: "testbed" prepares, the second is the command.

PYTHON  ?= python3
VENV    ?= .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
EXTRAS  ?= dev

# What follows "testbed" on the command line is passed on:  make testbed run SCENARIO=steady ARGS="--seed 7"
SCENARIO ?=
TOPOLOGY ?=
NAME     ?=
ARGS     ?=

.PHONY: testbed up status down run gc doctor setup format lint types imports check test test-fast bench soak clean

setup: $(STAMP)

$(STAMP): pyproject.toml scripts/setup
	@PYTHON=$(PYTHON) VENV=$(VENV) EXTRAS=$(EXTRAS) scripts/setup

testbed: $(STAMP)
	@true

up: $(STAMP)
	@$(BIN)/testbed up $(TOPOLOGY) $(if $(NAME),--name $(NAME)) $(ARGS)

status: $(STAMP)
	@$(BIN)/testbed status $(ARGS)

down: $(STAMP)
	@$(BIN)/testbed down $(NAME) $(ARGS)

run: $(STAMP)
	@$(BIN)/testbed run $(SCENARIO) $(ARGS)

gc: $(STAMP)
	@$(BIN)/testbed gc $(ARGS)

doctor: $(STAMP)
	@$(BIN)/testbed doctor $(ARGS)

format: $(STAMP)
	@$(BIN)/ruff format nodes testbed faults tests benchmarks
	@$(BIN)/ruff check --fix nodes testbed faults tests benchmarks

lint: $(STAMP)
	@$(BIN)/ruff format --check nodes testbed faults tests benchmarks
	@$(BIN)/ruff check nodes testbed faults tests benchmarks

types: $(STAMP)
	@$(BIN)/mypy

imports: $(STAMP)
	@$(BIN)/lint-imports

test-fast: $(STAMP)
	@$(BIN)/python -m pytest -q -m "not slow and not live"

check: lint types imports test-fast

test: $(STAMP)
	@$(BIN)/python -m pytest

bench: $(STAMP)
	@$(BIN)/python -m pip install -q -e '.[bench]'
	@$(BIN)/python -m benchmarks

soak: $(STAMP)
	@CONNEX_SOAK=10000 $(BIN)/python -m pytest -q tests/pipeline/test_soak.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
