# Everything below works from a fresh clone: each target first brings .venv up to date.

PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# What check, test, bench and demo need.
EXTRAS := test,dev,cli,codecs,arrow,bench,zookeeper,broker,interop,spark,connect
WORKERS ?= 2

.PHONY: pythons bench-spark bitrot spark spark-restarts verify-replicas fuzz setup parts check test demo bench simulate model zookeeper faults interop reader crash kill9 export-kills ingest-kills clean
.DEFAULT_GOAL := test

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "logstore needs Python 3.11 or newer on PATH" >&2; exit 2; }
	@echo "setting up $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --editable '.[$(EXTRAS)]'
	@touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What the tests start and pip does not bring.
parts:
	@.ci/parts

# The same tests, with warnings as errors, on every Python of this machine from 3.11 on.
pythons: parts
	.ci/pythons

# Benchmarks would be timed by two workers at once: they have their own target.
test: setup parts
	$(BIN)/python -m pytest -n $(WORKERS) -p no:benchmark -m "not slow and not interop and not spark"
	$(BIN)/python -m pytest -n $(WORKERS) -p no:benchmark -m "spark and not slow"

# One bit of every byte of a log dir with every kind of file: minutes.
bitrot: setup
	$(BIN)/python -m pytest tests/bitrot -m slow -s -p no:benchmark

# Spark reads 10 M records from a log and from its own Parquet, in turn, and exports them; RECORDS=1000000 for a short run.
bench-spark: setup parts
	RECORDS=$(or $(RECORDS),10000000) $(BIN)/python -m pytest bench/test_spark.py bench/test_spark_write.py \
		bench/test_export.py -p no:xdist -q --benchmark-only

demo: setup
	@.ci/parts java
	$(BIN)/logstore demo
	$(BIN)/python examples/spark_logs.py --output "$$(mktemp -d)/spark-logs"

bench: setup
	$(BIN)/python -m pytest bench -p no:xdist -m "not spark" --benchmark-only --benchmark-columns=min,median,ops
	$(BIN)/python -m pytest bench/test_compaction.py bench/test_wire.py -p no:xdist -q -s

# SHORT=1: one crash only, minutes on one core; else the crashes in recoveries too.
crash: setup
	$(BIN)/python -m tests.crash $(if $(SHORT),--short)

# Half an hour of two cores. Stopped, it goes on where it was; `rm .simulation` to begin anew. SEEDS=1..500 for a short one.
simulate: setup
	$(BIN)/logstore simulate --seeds $(or $(SEEDS),1..20000) --events $(or $(EVENTS),2000) -j $(WORKERS) \
		--commit "$$(git describe --always --dirty)" $(if $(JSON),--json) $(if $(SEEDS),,--progress .simulation)

# Three nodes in three processes and a ZooKeeper server: stopped, expired, killed, paused. Minutes; prints a table.
zookeeper: setup parts
	$(BIN)/python -m pytest tests/broker/test_three_processes.py -m slow -s -p no:benchmark

# Three brokers in three processes, clients at work: kill -9 and SIGSTOP, a hundred times, over both stores. A table.
kill9: setup parts
	$(BIN)/python -m tests.kill9 --rounds $(or $(ROUNDS),100)

# The protocol of one partition in every order of events; `make test` runs all but the long rows.
model: setup
	$(BIN)/python -m tests.model --long

# Every call to the disk fails in every way; `make test` runs a small part of it.
faults: setup
	$(BIN)/python -m pytest tests/faults -n $(WORKERS) -p no:benchmark

# Three clients, one behaviour after the other, on one broker and on three. ONLY=groups for a part. Sockets that a
# client leaves open are no news of ours, also when they go after the last test.
interop: setup
	$(BIN)/python -m pytest tests/interop -m interop -p no:benchmark -W ignore::ResourceWarning $(if $(ONLY),-k "$(ONLY)")

# The Spark tests on executors in processes of their own: Spark's local-cluster, and a standalone master. Minutes.
spark: setup parts
	$(BIN)/python -m tests.spark

# A stream that fails two hundred times, at every stage of its writing: each row once, in order. A table.
spark-restarts: setup parts
	$(BIN)/python -m tests.spark.kills --restarts $(or $(RESTARTS),200)
	$(BIN)/python -m tests.spark.restarts --restarts $(or $(RESTARTS),200)

# Three replica trees of a GiB each, fifty differences planted in every round, and how fast they are verified. A table.
verify-replicas: setup parts
	ROUNDS=$(or $(ROUNDS),3) GIB=$(or $(GIB),1) $(BIN)/python -m pytest tests/spark/jobs/test_verify_campaign.py \
		-m slow -s -p no:benchmark

# Guided by coverage, with atheris: RUNS of each target, a million together. Stops at what breaks a promise.
fuzz: setup
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --editable '.[fuzz]'
	for target in headers frames requests served; do \
		$(BIN)/python -m tests.fuzz $$target $(or $(RUNS),300000) || exit 1; done

# One process reads for a minute what another one writes, cuts, deletes and compacts.
reader: setup
	$(BIN)/python -m pytest tests/reader -p no:benchmark -s

# An export killed by SIGKILL, driver and workers, at seeded moments: each row once. ROUNDS=50 SEED=1.
export-kills: setup parts
	$(BIN)/python -m tests.spark.export_kills --rounds $(or $(ROUNDS),50) --seed $(or $(SEED),1)

# The same for an ingest with a checkpoint, while files keep coming. ROUNDS=10 SEED=1.
ingest-kills: setup parts
	ROUNDS=$(or $(ROUNDS),10) SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/spark/jobs/test_ingest.py \
		-m slow -s -p no:benchmark

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
