# On a fresh machine with Python 3.11 and make: `make demo` and `make test` do everything, installation included.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test suite test-slow test-browser lint style types bench docs install clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs,flower,medical]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/leakline run quickstart

lint: style types

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

test: style  # types take one core a minute, so the suite starts beside them
	$(MAKE) --jobs=2 types suite

suite: $(STAMP)
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(STAMP)
	$(BIN)/pytest -m slow

# Reports in a real Chromium (Debian's package, installed here if it is missing and this is root). Pictures of what it
# shows go to the folder that LEAKLINE_PICTURES names, if it is set.
test-browser: $(STAMP)
	command -v chromium >/dev/null || { apt-get update --quiet --quiet && apt-get install --yes --quiet --quiet chromium; }
	$(BIN)/pytest -m browser tests/browser

# Ratios against a bare loop and against peers, interleaved in one run. See docs/benchmarks.md.
bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt opacus || echo "opacus is not to be had: its rows are left out"
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/peers --upgrade pfl==0.6.0 dp-accounting==0.5.1 multiprocess==0.70.19 dill==0.4.1 prv-accountant==0.2.0 || echo "pfl is not to be had: its rows are left out"
	$(BIN)/python benchmarks/run.py

# The documentation as plain files in site/: open site/index.html, no server and no network needed.
docs: $(STAMP)
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) runs site .pytest_cache .mypy_cache .ruff_cache
