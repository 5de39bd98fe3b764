# Needs Python 3.11 or newer and make; everything else goes into .venv. `make help` says what there is.

IS_NEW := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(IS_NEW)' 2>/dev/null && echo $$p && break; done)
comma  := ,
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
NATIVE := $(VENV)/.native
PYTEST := $(BIN)/python -m pytest

JOBS    ?= 4# test processes at a time; they wait more than they compute
LIVE    ?= 3# the same for whole programs and calls, which have to keep up
COV     ?=# such as --cov: a quarter more time for unit tests
SECONDS ?= 10# per fuzz target
ARGS    ?=# passed on by `make up` and `make e2e`

IMAGE_PREFIX ?= localhost
TAG          ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
BUILDER      ?= $(shell for b in docker podman buildah; do command -v $$b && break; done)
PROGRAMS     := relay transceiver signaling operator

# Where whole programs are tested: to look for the few tests among all others takes seconds of each process.
WHOLE := tests/browser tests/fuzz tests/integration

# Where it is set, every start of a program would compile all of it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup native up test test-timed test-long lint types layers fmt crds chart images kind-up kind-down e2e fuzz bench bench-relay bench-transceiver bench-voice clean
.PHONY: native-if-cargo # part of others

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install usher with its development tools (again only when pyproject.toml changes)

$(STAMP): pyproject.toml
	@"$(PYTHON)" -c '$(IS_NEW)' 2>/dev/null || { \
		echo 'usher needs Python 3.11 or newer$(if $(PYTHON),$(comma) and PYTHON=$(PYTHON) is none); name one with PYTHON=…' >&2; exit 1; }
	@echo 'installing into $(VENV), a minute or so the first time' >&2
	@{ test -x $(BIN)/pip && $(BIN)/python -c '$(IS_NEW)' 2>/dev/null; } || \
		"$(PYTHON)" -m venv --clear $(VENV) >/dev/null 2>&1 || $(BIN)/python .ci/get_pip.py >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev >&2
	@touch $@

native: $(NATIVE) ## build the native relay engine into .venv; needs Rust (again only when it changes)

$(NATIVE): $(STAMP) $(wildcard relay/native/Cargo.* relay/native/*.toml relay/native/*.pyi relay/native/*/Cargo.toml) \
		$(shell find relay/native/path/src relay/native/engine/src -name '*.rs' 2>/dev/null)
	@command -v cargo >/dev/null || { echo 'the native engine needs Rust 1.85 or newer: https://rustup.rs' >&2; exit 1; }
	@echo 'building the native relay engine, a minute or so the first time' >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check ./relay/native >&2
	@touch $@

# Without it the Python engine does the same, slower: neither a missing nor a failing compiler stops anybody.
native-if-cargo: $(STAMP)
	@! command -v cargo >/dev/null || $(MAKE) --silent native || echo 'usher goes on with the Python engine' >&2

up: native-if-cargo ## start everything here and print `ready URL` (ARGS="--relays 2 …" is passed on)
	@exec $(BIN)/usher up $(ARGS)

# Coverage (COV, which CI sets) would slow whole programs and calls down (marker `programs`).
# Files begin in order of their names: in order of the number of tests the long ones would come last, and alone.
test: native-if-cargo lint types layers ## lint, types, layers and the tests this machine can run, but timed and long ones and e2e; no root needed
	$(PYTEST) -n $(JOBS) -m 'not programs and not timed and not long and not e2e' $(COV)
	$(PYTEST) -n $(LIVE) --dist=loadfile --no-loadscope-reorder -m 'programs and not timed and not long and not e2e' --durations=15 $(WHOLE)

test-timed: native-if-cargo ## tests that measure times or how whole a sound is, one after the other: let the machine do nothing else
	$(PYTEST) -m 'timed and not long and not e2e' --durations=15 $(WHOLE)

test-long: test test-timed ## both, then what takes minutes: long fuzzing, many more random examples, long calls
	USHER_FUZZ_SECONDS=120 $(PYTEST) -n $(JOBS) --hypothesis-profile=long --timeout=1800 tests/property tests/fuzz
	$(PYTEST) -m 'long and not e2e' --timeout=1800

lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

layers: $(STAMP) ## import-linter: programs stand on core, protocol code does no I/O
	$(BIN)/lint-imports --no-logo

fmt: $(STAMP) ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crds: $(STAMP) ## make crds/ and the tables of docs/kubernetes-api.md anew from the operator's models
	$(BIN)/python -m usher_operator.crd crds docs/kubernetes-api.md

chart: $(STAMP) ## copy CRDs, alerts and settings into charts/usher
	$(BIN)/python -m deploy.chart_copies

images: ## build the images IMAGE_PREFIX=localhost/usher-…:TAG with docker, podman or buildah
	@test -n '$(BUILDER)' || { echo 'install docker, podman or buildah, or name a builder with BUILDER=…' >&2; exit 1; }
	@for program in $(PROGRAMS); do \
		$(BUILDER) build --file deploy/$$program.Containerfile --build-arg VERSION=$(TAG) \
			$(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) \
			--tag $(IMAGE_PREFIX)/usher-$$program:$(TAG) . || exit 1; \
	done

kind-up: images ## a cluster of kind on this machine with a fleet in it; needs docker, kind, kubectl, helm
	kind create cluster --name usher --config kind-config.yaml
	@for program in $(PROGRAMS); do kind load docker-image --name usher $(IMAGE_PREFIX)/usher-$$program:$(TAG) || exit 1; done
	helm upgrade --install usher charts/usher --namespace usher --create-namespace --values deploy/kind-values.yaml \
		--set global.imageRegistry=$(IMAGE_PREFIX) --set-string operator.image.tag=$(TAG),signaling.image.tag=$(TAG) \
		--set-string relay.image.tag=$(TAG),transceiver.image.tag=$(TAG)
	kubectl apply --namespace usher --filename deploy/kind-pools.yaml
	kubectl wait --namespace usher --for=condition=Ready --timeout=5m rpool/edge tpool/voice
	@echo 'ready http://127.0.0.1:8080 (API key: the one in deploy/kind-values.yaml)'

kind-down: ## remove that cluster
	kind delete cluster --name usher

# What they need beside a cluster is told in tests/e2e/conftest.py. ARGS="-k scaling" runs some of them.
e2e: $(STAMP) ## tests on a Kubernetes cluster; needs KUBECONFIG, kubectl, helm, and USHER_E2E_BUILD to load images
	USHER_REQUIRE_ALL=1 $(PYTEST) -m 'e2e and not long' --timeout=600 --durations=15 $(ARGS) tests/e2e

fuzz: $(STAMP) ## run every fuzz target for SECONDS=10 each
	$(BIN)/python tests/fuzz/run.py --seconds $(SECONDS)

bench: $(STAMP) ## run every bench; numbers on stdout
	@for bench in $(sort $(wildcard benches/[a-z]*.py)); do echo "== $$bench"; $(BIN)/python $$bench || exit 1; done

bench-relay: native-if-cargo ## compare the relay's engines with a C loop and a Go relay (root for veth; ARGS="--quick")
	$(BIN)/python -m benches.relay.run $(ARGS)

bench-transceiver: native-if-cargo ## calls that one core of a transceiver holds, against stock aiortc (2 CPUs; ARGS="--quick")
	$(BIN)/python -m benches.transceiver.run $(ARGS)

bench-voice: $(STAMP) ## speech through loss and jitter: what is understood, against stock aiortc (ARGS="--seeds 1")
	$(BIN)/python -m benches.voice.run $(ARGS)

clean: ## remove .venv, caches and what builds leave
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache \
		.import_linter_cache tests/browser/node_modules relay/native/target
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
