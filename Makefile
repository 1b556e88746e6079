# `make demo` and `make test` do all of their own set-up.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow test-cluster gpu-check compare clean

demo: .venv/installed
	$(BIN)/fedbench attack

test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n 2

test-slow: .venv/installed-dev
	$(BIN)/pytest -q -m slow -n 2 --dist loadfile

test-cluster: .venv/installed-dev
	$(BIN)/pytest -q -m cluster

# How fast this is beside another commit: make compare BASE=main~5
compare: .venv/installed
	$(BIN)/python benchmarks/commits.py $(or $(BASE),HEAD~1)

gpu-check: .venv/installed
	$(BIN)/python benchmarks/gpu_check.py

.venv/bin/python:
	$(PYTHON) -c "import sys; sys.version_info >= (3, 11) or sys.exit('fedbench needs Python >= 3.11, got ' + sys.version.split()[0] + '; run make PYTHON=python3.11')"
	$(PYTHON) -m venv .venv

# Entry points are read from installed metadata, so a change of pyproject.toml installs again.
.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

clean:
	rm -rf .venv results
