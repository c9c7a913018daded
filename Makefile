# make demo    the main job on real input: installs what it needs (.venv-demo), runs both jobs, prints the comparison
# make test    all tests that this machine can run; lists what was skipped and why
# make test-bare   as root: the tests that may touch Open MPI, libfuse, pasta, Slurm, Chromium, ... where these are hidden, and a
#              part as an ordinary user, with and without user namespaces (scripts/bare-box)
# make test-fast   under two minutes: rooms that start little, the simulated feed, no real jobs
# make soak    the long run of the feed's proof (random faults and a million fuzzed frames, SOAK_MINUTES: 20), every row of
#              the fault table FAULT_ROUNDS (20) times, and what `make test` leaves out because another test has it (`if SOAK`,
#              tests/proof/effort.py), about an hour and a half
# make check   lint, format, types
# make bench   measurements against peers; raw data under bench/results (make bench-feed: the feed's alone)
# make bench-shards   tar and Parquet shards through the feed, WebDataset, torch, datasets, Grain, LitData, Energon, SPDL,
#              Ray Data and Mosaic Streaming (SPDL's decoder needs FFmpeg's libraries: libavformat59, libavfilter8, libavdevice59 on Debian 12)
# make bench-resume   epochs over tar files that stop and go on, and killed workers: what is lost, what comes twice, how long it takes
# make bench-advise   how far the predictions of `headrace advise` are off, on this machine
# make bench-serve   what `headrace serve` adds to a job, its CPU a poll, its S3, its memory
# make bench-s3   what objects cost `headrace serve`, beside moto's server
# make oracle   moto's own tests of S3, from its source package, and Ceph's, against the S3 of `headrace serve`; bench/results/s3-moto.json
#              and s3-ceph.json have them all; CEPH_TESTS: a folder with Ceph's, where no network brings them
# make bench-tfdata   managed tf.data service and headrace's feed against a service started by hand
# make horovod   builds .venv-horovod, for examples/horovod-mnist and its test; make openmpi5 likewise .venv-openmpi5
# make kubernetes   the table of engines on a real Kubernetes cluster of this machine, built from Debian's source (as root, on
#              Debian 12; the first time 10 minutes more); KUBERNETES_TESTS: what runs there
# make sagemaker-sdk   builds .venv-sagemaker, for tests/endpoint/test_serve_sdk.py; make sagemaker-sdk3: a job by version 3 of the SDK
# make release-check   builds sdist and wheel twice, and installs them in a bare environment of each Python
# make screenshots   the pictures of docs/images, by a headless Chromium over made-up runs (scripts/screenshots.py)
# make docs    the documentation as a site under site/, with pages made from job file, commands and docstrings

# The first that works; a version manager's command may be there and not work.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.10 python3; do $$p -c 'import venv' 2>/dev/null && echo $$p && break; done)
VENV := .venv
DEMO := .venv-demo
# An index that has torch without CUDA, which is 2 GB smaller, where pip's own index has it with CUDA only:
# make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
ORACLE := .venv-oracle
ORACLE_TESTS := .oracle-tests
CEPH_TESTS ?=
export CEPH_TESTS
CEPH_FROM := https://github.com/ceph/s3-tests
CEPH_COMMIT := 8f0ae7b404a3a2fcf7038bf1e6bf29544fe9b6a3
PEERS := .venv-bench
MOSAIC := .venv-mosaic
# What follows `python -m bench.feed`: rows, or another command; see docs/benchmarks.md.
BENCH_FEED ?=
# The same for `python -m bench.shards`, and `python -m bench.resume`.
BENCH_SHARDS ?=
BENCH_RESUME ?=
BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check
TESTS ?= tests
# auto: tests run side by side, each worker in a box of its own (tests/apart.py), where this machine allows that;
# `make test WORKERS=0`: one after the other.
WORKERS ?= auto
PYTEST := -m pytest -n $(WORKERS)
SOAK_MINUTES ?= 20
KUBERNETES_TESTS ?= tests/kubernetes
# every file that has something for the long run
SOAK_TESTS ?= $(shell grep -rlE --include='test_*.py' 'SOAK|from effort import' tests)
# What depends on Python, and works without torch, is also tested on the oldest and the newest: rooms that start little, and of
# the tests that start real jobs one of every kind.
OTHER_PYTHONS := 3.10 3.13
PURE_TESTS := tests/instance tests/runs tests/agent tests/job/test_job_document.py tests/job/test_job_from_python.py tests/job/test_job_groups.py \
  tests/job/test_job_overrides.py tests/job/test_job_schema.py tests/cli/test_cli_basics.py tests/insight/test_verdict_of_runs.py \
  --deselect tests/job/test_job_document.py::test_a_huge_file_is_refused_in_bounded_time_and_memory \
  $(addprefix tests/cli/test_cli_run_job.py::,test_a_job_runs_to_its_end_and_exits_with_0 test_ctrl_c_once_stops_the_job_in_order \
  test_a_failed_job_exits_with_1_and_shows_the_first_cause_with_its_last_lines) \
  tests/cli/test_cli_life.py::test_a_detached_run_is_listed_followed_and_waited_for \
  tests/cli/test_cli_runs.py::test_logs_are_merged_by_time_with_their_place \
  $(addprefix tests/engines/test_local_run.py::,test_three_hosts_run_the_entry_point_and_leave_nothing \
  test_output_is_kept_whole_and_never_blocks_a_program)

# The inner loop: what starts few processes.
FAST_TESTS := tests/test_rooms.py tests/test_promises.py tests/test_served_rows.py tests/catalog tests/job tests/instance tests/runs tests/insight \
  tests/proof/test_proof_order.py tests/adapters/test_estimator_cells.py \
  $(addprefix tests/agent/test_agent_,coordinator.py elastic.py firstcause.py messages.py order.py output.py programs.py serving.py values.py) \
  $(addprefix tests/feed/test_feed_,layout.py naming.py permutation.py plan.py position.py schedule.py seeds.py session.py shards.py simulated.py \
  slabs.py tree.py wire.py)

# What an ordinary user's machine may do otherwise: signals, namespaces, ports, other users' files.
BARE_OPTIONS ?=
BARE_USER_TESTS := tests/test_apart.py tests/runs/test_run_state.py tests/agent/test_agent_tfdata.py tests/cli/test_cli_odd_paths.py \
  $(addprefix tests/cli/test_cli_run_job.py::,test_a_job_runs_to_its_end_and_exits_with_0 test_ctrl_c_once_stops_the_job_in_order) \
  tests/engines/test_local_run.py::test_three_hosts_run_the_entry_point_and_leave_nothing \
  tests/test_private_folders.py::test_a_home_that_is_no_folder_that_one_may_enter_is_an_error_with_a_hint_in_every_command

.PHONY: oracle sagemaker-sdk sagemaker-sdk3 demo test test-bare test-fast soak check bench bench-feed bench-shards bench-resume bench-advise bench-serve bench-s3 bench-tfdata docs screenshots release-check format clean horovod openmpi5 kubernetes
.DELETE_ON_ERROR:

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --no-compile -c constraints.txt torch  # by pip, whose settings may name where it is without CUDA
	scripts/install $(VENV) -c constraints.txt -e '.[dev,examples]'
	scripts/compile-installed $(VENV)
	touch $@

# Byte code is left to the first import: it takes a third of the time of an installation.
$(DEMO)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python $(PIP) --no-compile $(TORCH_INDEX:%=--extra-index-url %) -c constraints.txt -e '.[examples]'
	touch $@

$(ORACLE)/ready: constraints-oracle.txt
	$(PYTHON) -m venv $(ORACLE)
	scripts/install $(ORACLE) -r constraints-oracle.txt
	scripts/compile-installed $(ORACLE)
	touch $@

$(PEERS)/ready: constraints-bench.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python $(PIP) -r constraints-bench.txt
	$(PEERS)/bin/python $(PIP) --no-deps litdata==0.2.76 megatron-energon==7.4.1  # they ask for torchvision, and for torch with CUDA
	touch $@

$(MOSAIC)/ready: constraints-mosaic.txt
	$(PYTHON) -m venv $(MOSAIC)
	$(MOSAIC)/bin/python $(PIP) -r constraints-mosaic.txt
	$(MOSAIC)/bin/python $(PIP) --no-deps mosaicml-streaming==0.13.0
	touch $@

# TensorFlow and Horovod (compiled, some 2 minutes), and Open MPI 5 of PyPI, in environments of their own: tests that
# need them run when they are there. .ci/run makes both.
horovod:
	scripts/horovod

openmpi5:
	scripts/openmpi5

# The SageMaker SDK, version 2, and the AWS CLI (470 MB, half a minute); tests of `headrace serve` run with them when they are there.
sagemaker-sdk:
	scripts/sagemaker-sdk

# Version 3 of the SDK, in an environment that is removed again, against `headrace serve`.
sagemaker-sdk3:
	scripts/sagemaker-sdk3

# Tests run in the network of the control plane, which only this cluster has: one after the other.
kubernetes: $(VENV)/ready
	scripts/kubernetes/build
	$(BIN)/python scripts/kubernetes/cluster.py run --nodes 4 $(BIN)/python -m pytest -n 0 $(KUBERNETES_TESTS)

demo: $(DEMO)/ready
	$(DEMO)/bin/python examples/digits/demo.py

test: $(VENV)/ready $(ORACLE)/ready
	scripts/run-tests $(BIN)/python $(WORKERS) $(TESTS)
	@[ "$(TESTS)" != tests ] || $(MAKE) --no-print-directory -j2 --output-sync=target $(OTHER_PYTHONS:%=test-on-%)

test-on-%:
	@PYTEST_XDIST_AUTO_NUM_WORKERS=2 scripts/test-on-python $* $(WORKERS) $(PURE_TESTS)

# BARE_OPTIONS: see scripts/bare-box. What touches no need runs in `make test` alone.
test-bare: $(VENV)/ready
	$(BIN)/python scripts/bare-box $(BARE_OPTIONS) $(BIN)/python -m pytest -n 0 -q -p no:cacheprovider --collect-only $(TESTS) > /dev/null
	HEADRACE_TESTS_BARE=touching $(BIN)/python scripts/bare-box $(BARE_OPTIONS) $(BIN)/python -m pytest -n $(WORKERS) -p no:cacheprovider $(TESTS)
	$(BIN)/python scripts/bare-box $(BARE_OPTIONS) --user --no-namespaces $(BIN)/python -m pytest -n 0 -p no:cacheprovider $(BARE_USER_TESTS)
	$(BIN)/python scripts/bare-box $(BARE_OPTIONS) --user $(BIN)/python -m pytest -n $(WORKERS) -p no:cacheprovider $(BARE_USER_TESTS)

test-fast: $(VENV)/ready
	$(BIN)/python $(PYTEST) -m 'not slow and not namespaces and not s3 and not oracle' --ignore-glob '*browser*' $(FAST_TESTS)

soak: $(VENV)/ready
	HEADRACE_SOAK=1 SOAK_MINUTES=$(SOAK_MINUTES) $(BIN)/python -m pytest -n 0 $(SOAK_TESTS)

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/code_lines.py src/headrace
	$(BIN)/python -m pytest -q -n 0 --durations=1 tests/test_docs.py tests/test_release.py

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/ready bench-feed
	$(BIN)/python bench/digits_pairs.py

bench-feed: $(PEERS)/ready
	PYTHONPATH=$(CURDIR)/src $(PEERS)/bin/python -m bench.feed $(BENCH_FEED)

bench-shards: $(PEERS)/ready $(MOSAIC)/ready
	PYTHONPATH=$(CURDIR)/src:$(CURDIR) $(PEERS)/bin/python -m bench.shards $(BENCH_SHARDS)

bench-resume: $(PEERS)/ready $(MOSAIC)/ready
	PYTHONPATH=$(CURDIR)/src:$(CURDIR) $(PEERS)/bin/python -m bench.resume $(BENCH_RESUME)

bench-advise: $(VENV)/ready
	PYTHONPATH=$(CURDIR)/src:$(CURDIR) $(BIN)/python -m bench.advise

bench-serve: $(VENV)/ready
	$(BIN)/python bench/serve.py

bench-s3: $(VENV)/ready
	$(BIN)/python bench/s3.py --signed

oracle: $(VENV)/ready
	$(BIN)/python -m pip download -q --no-deps --no-binary :all: -d $(ORACLE_TESTS) "$$($(BIN)/python -m pip freeze | grep '^moto==')"
	$(BIN)/python -m pip install -q --no-deps --target $(ORACLE_TESTS)/libraries freezegun
	PYTHONPATH=$(CURDIR)/$(ORACLE_TESTS)/libraries $(BIN)/python bench/moto_suite.py $(ORACLE_TESTS)/moto-*.tar.gz --out bench/results/s3-moto.json
	@if [ -z "$(CEPH_TESTS)" ] && ! [ -d $(ORACLE_TESTS)/ceph ]; then git clone -q $(CEPH_FROM) $(ORACLE_TESTS)/ceph && git -C $(ORACLE_TESTS)/ceph checkout -q $(CEPH_COMMIT); fi; \
	folder=$${CEPH_TESTS:-$(ORACLE_TESTS)/ceph}; if ! [ -d "$$folder/s3tests" ]; then echo "Ceph's tests of S3 are not run: $(CEPH_FROM) cannot be reached; CEPH_TESTS names a folder that has them"; else \
	$(BIN)/python -m pip install -q --no-deps --target $(ORACLE_TESTS)/libraries munch isodate pytz && \
	PYTHONPATH=$(CURDIR)/$(ORACLE_TESTS)/libraries $(BIN)/python bench/ceph_suite.py "$$folder" --out bench/results/s3-ceph.json; fi

bench-tfdata: $(VENV)/ready
	$(BIN)/python -m bench.tfdata

release-check:
	scripts/release-check

screenshots: $(VENV)/ready
	$(BIN)/python $(PIP) pillow==13.0.0
	$(BIN)/python scripts/screenshots.py

docs: $(VENV)/ready
	$(BIN)/python $(PIP) -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv* site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
