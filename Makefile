# Each target is thin: what it runs can be run by hand. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
# Options for every call of pip, for example PIP_FLAGS="--index-url ..." for a mirror.
PIP_FLAGS ?=
# Asked for the CPU build of torch when pip, as it is configured, does not find one.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
# What `buf breaking` compares with: main, wherever it is.
BASE = $(shell git rev-parse -q --verify main || git rev-parse -q --verify origin/main || git rev-parse -q --verify HEAD)

BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install $(PIP_FLAGS) --quiet --no-deps --no-compile --no-build-isolation
PROTOS := $(wildcard proto/shoal/v1/*.proto)
REQUIREMENTS := $(wildcard requirements/*.txt)
TORCH := torch==$(shell sed -n 's/^torch==//p' requirements/learner.txt)+cpu

# Modules are compiled when they are first imported, and that has to be kept: installing without compiling
# saves a minute.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help quickstart install install-dev test check format proto requirements docs accept clean
help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | column -t -s "$$(printf '\t')"

quickstart: install  ## Install, then train a small model on sums with all four services, here and now
	$(BIN)/shoal train configs/quickstart.toml

install: $(VENV)/installed  ## Make .venv with what the four services need on a CPU (without reasoning-gym)

install-dev: $(VENV)/installed-dev  ## The same, with what tests and checks need

# The first half waits more than it computes, so two files at a time; real engines take every core that there is.
test: install-dev  ## Run the tests, or those named: make test TESTS=tests/unit
ifdef TESTS
	$(BIN)/python -m pytest $(TESTS)
else
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/unit tests/golden tests/architecture tests/contract
	$(BIN)/python -m pytest tests/integration tests/e2e
endif

check: install-dev  ## Lint, format, types, import contracts, protos, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/buf breaking --against '.git#ref=$(BASE)'
	$(BIN)/python tools/lock.py --check
	$(BIN)/python tools/configuration_docs.py --check
	$(BIN)/python tools/metrics_docs.py --check
	$(BIN)/python tools/translation_docs.py --check
	$(BIN)/python -m pytest -q tests/contract/test_protos.py

format: install-dev  ## Rewrite Python and protos in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format --write

proto: install-dev  ## Regenerate shoal/v1 from proto/
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. \
		$(PROTOS)

requirements: install-dev  ## Rewrite requirements/ from what .venv has installed
	$(BIN)/python tools/lock.py

docs: install-dev  ## Rewrite docs/configuration.md and docs/metrics.md from the code's own words
	$(BIN)/python tools/configuration_docs.py
	$(BIN)/python tools/metrics_docs.py
	$(BIN)/python tools/translation_docs.py

accept: install-dev  ## Show every promise of the README on this machine, with figures (an hour or two)
	$(BIN)/python -m pytest -s tests/acceptance

clean:  ## Remove .venv and caches; run folders stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Shoal needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)

# First torch, which may need an index of its own, and what a few packages that come as source are built with.
$(VENV)/torch: requirements/learner.txt requirements/build.txt | $(BIN)/python
	$(PIP) '$(TORCH)' 2>/dev/null || $(PIP) --index-url $(TORCH_CPU_INDEX) '$(TORCH)'
	$(PIP) -r requirements/build.txt
	@touch $@

$(VENV)/installed: $(REQUIREMENTS) pyproject.toml $(VENV)/torch
	$(PIP) -r requirements/all-cpu.txt
	$(PIP) -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) -r requirements/dev.txt
	$(PIP) -r requirements/tasks.txt || echo 'reasoning-gym is left out, and its tests: pycosat needs a C compiler' >&2
	@touch $@
