# Everything a newcomer needs. Each target makes its own environment in .venv first.
SHELL := /bin/bash
VENV ?= .venv
PY := $(VENV)/bin/python
export MUSTER_VENV := $(VENV)
SOURCES := $(wildcard muster_network protocol ledger discovery orchestrator gateway worker shardcast rollouts validator trainer cli integrations tests benchmarks)

.PHONY: help setup tools devnet test check format bench lock clean

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## make .venv with the locked packages and this code (about a minute)
	@deploy/setup/python.sh

tools: setup  ## setup, then what all tests use: Redis, node, bubblewrap, nginx, Chromium, Prometheus, Swift, vLLM, verifiers, helm, compose
	@deploy/setup/system.sh redis node sandbox nginx browser prometheus
	@deploy/setup/swift.sh
	@deploy/setup/vllm.sh
	@deploy/setup/verifiers.sh
	@deploy/setup/helm.sh
	@deploy/setup/compose.sh

devnet: setup  ## run a whole network on this machine until it has learned (CHEAT=name, ARGS="--help")
	@deploy/setup/system.sh redis sandbox
	@exec $(PY) -m cli devnet $(if $(CHEAT),--cheat $(CHEAT)) $(ARGS)

test: tools  ## run every test that this machine can run
	@tests/run.sh $(ARGS)

check: setup  ## style, strict types, import rules
	@$(PY) -m ruff check $(SOURCES)
	@$(PY) -m ruff format --check $(SOURCES)
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports

format: setup  ## rewrite the code in the one style
	@$(PY) -m ruff check --fix $(SOURCES)
	@$(PY) -m ruff format $(SOURCES)

bench: tools  ## print the figures in docs/figures.md (BENCH=name for one of benchmarks/)
	@for script in $(if $(BENCH),benchmarks/$(BENCH).py,$(sort $(wildcard benchmarks/[a-z]*.py))); do \
	  echo "== $$script"; $(PY) -m $$(basename $$script .py | sed 's/^/benchmarks./') || exit 1; done

lock: setup  ## pin the dependencies again
	@deploy/setup/lock.sh $(ARGS)

clean:  ## remove what the other targets made
	rm -rf $(VENV) .tools .devnet .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
