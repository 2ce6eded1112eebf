# `make demo` and `make test` each set up their own environment in .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test quick bench setup clean

demo: .venv/ready
	$(BIN)/pri-rfed run configs/quickstart.toml

test: .venv/ready-test
	$(BIN)/python -m pytest -n auto

quick: .venv/ready-test
	$(BIN)/python -m pytest -n auto -m "not slow"

bench: .venv/ready-test
	$(BIN)/python -m benchmarks

setup: .venv/ready-test

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "PriRFed needs Python 3.11 or newer; choose one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv

.venv/ready: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/ready-test: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf .venv .venv-bench build *.egg-info
