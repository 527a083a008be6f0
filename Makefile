# Two commands set up everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

.PHONY: install demo demo-tiny test test-slow test-min check lint types imports bench image push clean

install: $(STAMP)

demo: $(STAMP)  ## the main job on a real model, with its report
	$(BIN)/policyloop demo

demo-tiny: $(STAMP)  ## the same circle on the tiny model, without a download
	$(BIN)/policyloop demo --tiny

test: check  ## checks, units and the circle on CPU
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu"

test-slow: $(STAMP)  ## the real model and long kill campaigns as well
	$(BIN)/python -m pytest -m "not gpu"

test-min:  ## the unit tests at the lower bounds of every dependency
	$(PYTHON) -m venv .venv-min
	.venv-min/bin/python -m pip install --quiet --upgrade pip
	.venv-min/bin/python -m pip install --quiet --constraint constraints-min.txt --editable ".[dev]"
	.venv-min/bin/python -m pytest -n 2 -m "not slow and not gpu"

check: lint types imports

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks scripts
	$(BIN)/ruff format --check src tests benchmarks scripts

types: $(STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: $(STAMP)
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/policyloop bench train

REGISTRY ?=
TAG ?= 0.1.0
LOCK = $(shell sha256sum constraints.txt | cut -c1-64)

image:  ## both images, labelled with the digest of the lock they were made from
	docker build -f deploy/docker/Dockerfile --build-arg LOCK_DIGEST=$(LOCK) -t $(REGISTRY)policyloop:$(TAG) .
	docker build -f deploy/docker/Dockerfile.gateway --build-arg LOCK_DIGEST=$(LOCK) -t $(REGISTRY)policyloop-gateway:$(TAG) .

push: image  ## make image push REGISTRY=registry.example.com/team/
	docker push $(REGISTRY)policyloop:$(TAG)
	docker push $(REGISTRY)policyloop-gateway:$(TAG)

clean:
	rm -rf $(VENV) .venv-min .pytest_cache .ruff_cache runs
