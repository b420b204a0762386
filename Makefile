# On a fresh machine with Python 3.11 and make: `make demo` and `make test` do everything, installation included.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-slow lint bench install clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,flower,medical]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/leakline run quickstart

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2 --dist loadfile

test-slow: $(STAMP)
	$(BIN)/pytest -m slow

# Ratios against a bare loop and against peers, interleaved in one run. See docs/benchmarks.md.
bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt opacus || echo "opacus is not to be had: its rows are left out"
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/peers --upgrade pfl==0.6.0 dp-accounting==0.5.1 multiprocess==0.70.19 dill==0.4.1 prv-accountant==0.2.0 || echo "pfl is not to be had: its rows are left out"
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
