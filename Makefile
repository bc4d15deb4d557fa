# Every target sets up what it needs, in .venv. Nothing is installed outside this folder.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check -q
NATIVE := CMakeLists.txt $(shell find native -type f)
# The editable install knows the packages that were there when it was made.
ROOMS  := $(shell find src -name __init__.py)
JOBS   ?= 2

.PHONY: help tour test check format native-test bench soak wheel clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# pip, not another installer: only pip finds the CPU build of torch that constraints.txt pins.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.tools: $(BIN)/python constraints.txt
	$(PIP) install -c constraints.txt scikit-build-core nanobind cmake ninja
	@touch $@

$(VENV)/.qkv: $(VENV)/.tools pyproject.toml $(NATIVE) $(ROOMS)
	@echo "setting up qkv in $(VENV) (PyTorch is the large part; about two minutes the first time)"
	$(PIP) install -c constraints.txt --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src/qkv
	@touch $@

$(VENV)/.dev: $(VENV)/.qkv
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

tour: $(VENV)/.qkv ## what qkv does, on built-in examples, in under a minute
	@$(BIN)/qkv tour

check: $(VENV)/.dev ## ruff, pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.dev ## let ruff write what check asks for
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

native-test: $(VENV)/.tools ## the C++ tests, with address and undefined-behaviour sanitizers
	@mkdir -p build
	$(BIN)/cmake -S . -B build/native-tests -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	  -DQKV_TESTS=ON -DQKV_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo > build/native-tests.log 2>&1 \
	  || { cat build/native-tests.log; exit 1; }
	$(BIN)/cmake --build build/native-tests
	$(BIN)/ctest --test-dir build/native-tests --output-on-failure

test: check native-test ## everything that CI runs
	$(BIN)/python -m pytest -n $(JOBS)

bench: $(VENV)/.dev ## qkv and its peers in one run: tables here, JSON in build/bench
	$(BIN)/python -m benchmarks

soak: $(VENV)/.dev ## long campaigns that do not fit into make test
	$(BIN)/python -m pytest -n $(JOBS) --soak tests/properties

wheel: $(VENV)/.tools ## a wheel for this machine, in dist
	$(PIP) wheel --no-build-isolation --no-deps -w dist .

clean: ## forget .venv and everything that was built
	rm -rf $(VENV) build dist
