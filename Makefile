# All targets work from a fresh clone: each brings .venv up to date first. `make help` lists them.

PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# What check, test, bench and demo need.
EXTRAS := test,dev,cli,codecs,arrow,bench,zookeeper,zookeeper-sasl,broker,interop,spark,avro,tier,connect
# Tests start hundreds of Python processes: compiled modules halve the time of each.
unexport PYTHONDONTWRITEBYTECODE
# More workers than cores: many tests wait for processes, sessions and disks.
WORKERS ?= 3
# Tests take from milliseconds to a minute: a worker that is done takes over from the others.
DIST := --dist worksteal
# Where tests with a Spark session are: to collect all others takes each worker seconds. A test holds this to be complete.
SPARK_TESTS := tests/test_docs.py tests/test_installation.py tests/spark
LONG_TESTS = $(shell sed -n 's/^\(tests[^:]*\)::.*/\1/p' tests/long.txt | sort -u)
# Beside which `make bench-kafka` measures.
KAFKA_VERSIONS := 3.9.1,4.1.1

.PHONY: help setup pythons lowest check docs parts test demo bench bench-kafka bench-partitions bench-peers bench-spark bench-tls bitrot cluster-judge console crash disk-full faults fuzz image interop job-kills judge kill9 logins long model mutants operators-hour partition-judge partitions power-cuts pressure queue-kill9 quotas read-judge reader rot shared-kill9 shared-schedules simulate slow soak spark spark-comparison spark-hour spark-mistakes spark-restarts suites thread-schedules verify-replicas troubles watching watching-quiet wire-judge zookeeper clean
.DEFAULT_GOAL := test

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-16s  %s\n", $$1, $$2 }'

setup: $(INSTALLED) ## Create .venv and install the package with all extras

$(INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "logstore needs Python 3.11 or newer on PATH" >&2; exit 2; }
	@echo "setting up $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --editable '.[$(EXTRAS)]'
	@touch $@

check: setup ## Run the linters, the type checker, the import contracts and the strict site build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs

# A broken link or a public name without a docstring fails the build.
docs: setup ## Build the documentation site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

parts: ## Install Java and ZooKeeper for the tests, if permitted
	@.ci/parts

pythons: parts ## Run the tests on every Python from 3.11 on, with warnings as errors
	.ci/pythons

lowest: parts ## Run the tests with the lowest versions of libraries that pyproject.toml allows
	.ci/lowest

# Benchmarks have their own target: parallel workers would distort their times.
test: setup parts ## Run the tests (minutes)
	$(BIN)/python -m pytest -n $(WORKERS) $(DIST) -p no:benchmark -m "not slow and not long and not interop and not spark"
	$(BIN)/python -m pytest -n 2 $(DIST) -p no:benchmark -m "spark and not slow and not long" $(SPARK_TESTS)

long: setup parts ## Run the tests that `make test` leaves out for time: tests/long.txt (minutes)
	$(BIN)/python -m pytest -n $(WORKERS) $(DIST) -p no:benchmark -m "long and not spark" $(LONG_TESTS)
	$(BIN)/python -m pytest -n 2 $(DIST) -p no:benchmark -m "long and spark" $(LONG_TESTS)

slow: setup parts ## Run the slow tests that no other target runs (an hour and more)
	$(BIN)/python -m pytest -n $(WORKERS) -p no:benchmark -m "slow and not interop and not spark" \
		tests/broker/wire tests/broker/security/test_hostile_logins.py tests/cli tests/crash tests/logstore tests/spark tests/testing

bitrot: setup ## Flip one bit in every byte of a log dir (minutes)
	$(BIN)/python -m pytest tests/bitrot -m slow -s -p no:benchmark

bench-partitions: setup ## Measure the pauses of three brokers with many partitions; PARTITIONS=1000
	PARTITIONS=$(or $(PARTITIONS),1000) $(BIN)/python -m pytest bench/test_partitions.py -p no:xdist -p no:benchmark -q -s

bench-spark: setup parts ## Compare reads and writes of Spark with Parquet, Arrow and its Kafka connector; RECORDS=1000000 ROUNDS=1 for a short run
	RECORDS=$(or $(RECORDS),10000000) $(BIN)/python -m pytest bench/test_spark.py bench/test_spark_write.py \
		bench/test_export.py -p no:xdist -q --benchmark-only
	RECORDS=$(or $(RECORDS),10000000) ROUNDS=$(or $(ROUNDS),3) $(BIN)/python -m bench.spark_table

queue-kill9: setup ## Kill the owner of a queue of 10 million messages 200 times (tens of minutes); SHORT=1
	$(BIN)/python -m tests.queue_kill9 $(if $(SHORT),--rounds 20,--messages 10000000 --leased 1000000 --rounds 200)

shared-kill9: setup ## Kill the processes of a shared queue and its broker (minutes); ROUNDS=40 SEED=1
	$(BIN)/python -m tests.shared_kill9 --rounds $(or $(ROUNDS),40) --seed $(or $(SEED),1)

shared-schedules: setup ## Requests of a shared queue's workers in random order, with lost answers and deaths; SEEDS=1..200
	$(BIN)/python -m tests.shared_schedules --seeds $(or $(SEEDS),1..200)

thread-schedules: setup ## Threads and tasks at logs, a writer and a queue, which change at any line of the engine; SEEDS=1..1000
	$(BIN)/python -m tests.thread_schedules --seeds $(or $(SEEDS),1..1000)

demo: setup ## Run the crash demo and the Spark example
	@.ci/parts java
	$(BIN)/logstore demo
	$(BIN)/python examples/spark_logs.py --output "$$(mktemp -d)/spark-logs"

bench: setup ## Run the benchmarks
	$(BIN)/python -m pytest bench -p no:xdist -m "not spark" --benchmark-only --benchmark-columns=min,median,ops
	$(BIN)/python -m pytest bench/test_compaction.py bench/test_wire.py -p no:xdist -q -s

bench-tls: setup ## Measure what TLS costs a broker: processor time, memory of connections; RECORDS=1000000 ROUNDS=5
	RECORDS=$(or $(RECORDS),1000000) ROUNDS=$(or $(ROUNDS),5) $(BIN)/python -m pytest bench/test_tls.py -p no:xdist -p no:benchmark -q -s

bench-peers: setup ## Measure beside SQLite, LMDB and what else programs embed; TABLE=FILE to write it
	$(BIN)/python -m pytest bench -m peers -p no:xdist -q --benchmark-only --benchmark-columns=median,ops \
		$(if $(TABLE),--table $(TABLE))

# Without Java or Maven it says so and ends; Apache Kafka comes from Maven Central, once.
bench-kafka: setup ## Measure brokers beside Apache Kafka; SHORT=1, ROWS=consume-1k, VERSIONS=3.9.1, JSON=1
	$(BIN)/python -m bench.kafka --versions $(or $(VERSIONS),$(KAFKA_VERSIONS)) $(if $(ROWS),--rows $(ROWS)) \
		$(if $(SHORT),--short) $(if $(GIB),--gib $(GIB)) $(if $(JSON),--json)

crash: setup ## Cut the power before every disk call; SHORT=1 leaves out crashes during recovery
	$(BIN)/python -m tests.crash $(if $(SHORT),--short)
	$(BIN)/python -m pytest tests/crash/test_move_points.py tests/logstore/test_moves.py tests/logstore/test_split.py \
		tests/replication/test_log_moves.py -m slow -q -p no:benchmark

# About half an hour on two cores. An interrupted run resumes; remove .simulation to start over.
simulate: setup ## Simulate clusters under 20,000 seeds; SEEDS=1..500 for a short run
	$(BIN)/logstore simulate --seeds $(or $(SEEDS),1..20000) --events $(or $(EVENTS),2000) -j $(WORKERS) \
		--commit "$$(git describe --always --dirty)" $(if $(JSON),--json) $(if $(SEEDS),,--progress .simulation)

zookeeper: setup parts ## Stop, expire, kill and pause three nodes on a ZooKeeper server (minutes)
	$(BIN)/python -m pytest tests/broker/test_three_processes.py -m slow -s -p no:benchmark

kill9: setup parts ## Kill and pause broker processes under load; ROUNDS=100; SECURED=1 with TLS and logins
	$(BIN)/python -m tests.kill9 --rounds $(or $(ROUNDS),100) $(if $(SECURED),--secured)

partitions: setup ## Cut brokers off from each other, the store and clients under load; ROUNDS=30 SECURED=1 STORE=zookeeper ONLY=mute
	$(BIN)/python -m tests.partitions --rounds $(or $(ROUNDS),30) $(if $(SECURED),--secured) $(if $(STORE),--store $(STORE)) $(if $(ONLY),--kinds $(ONLY))

rot: setup ## Let files of three brokers rot under load; ROUNDS=200 SEED=1
	$(BIN)/python -m tests.rot --rounds $(or $(ROUNDS),200) --seed $(or $(SEED),1)

pressure: setup ## Attack a broker and its store in eight ways while a client works; ONLY=bombs for one
	$(BIN)/python -m tests.pressure $(if $(ONLY),--only $(ONLY)) $(if $(SENDS),--sends $(SENDS))

soak: setup ## Churn topics, groups and connections, and watch memory, descriptors and files; MINUTES=35
	$(BIN)/python -m tests.pressure soak --minutes $(or $(MINUTES),35)

disk-full: setup ## Fill the disk of a broker again and again, with clients at work (root); MINUTES=20 SECURED=1
	$(BIN)/python -m tests.disk_full --minutes $(or $(MINUTES),20) $(if $(SECURED),--secured)

power-cuts: setup ## Cut the power of ext4, xfs and btrfs under logs, and under a cluster (root); MOMENTS=20 CUTS=10 SEED=0 KINDS=xfs
	.ci/parts power
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --editable '.[power]'
	$(BIN)/python -m pytest tests/power -m interop -p no:benchmark -p no:xdist
	$(BIN)/python -m tests.power --moments $(or $(MOMENTS),20) --seed $(or $(SEED),0) $(if $(KINDS),--kinds $(KINDS))
	$(BIN)/python -W ignore -m tests.power.cluster --cuts $(or $(CUTS),10) --seed $(or $(SEED),0) \
		$(if $(KINDS),--kinds $(KINDS))

model: setup ## Check the replication protocol in every order of events, long runs included
	$(BIN)/python -m tests.model --long

mutants: setup ## Make 110 mistakes in a copy of the code, one by one: tests must notice each; AREA=groups
	$(BIN)/python -m tests.mutants $(if $(AREA),--area $(AREA))

faults: setup ## Fail every disk call in every way
	$(BIN)/python -m pytest tests/faults -n $(WORKERS) -p no:benchmark

# Warnings about sockets that a client leaves open say nothing about this package.
interop: setup ## Run three Kafka clients against our brokers, hand directories to Kafka and back; ONLY=groups for a part
	$(BIN)/python -m pytest tests/interop tests/judge tests/partition_judge tests/cli/test_adopt_and_back.py tests/spark/test_secured_kafka.py tests/partitions -m interop -p no:benchmark -W ignore::ResourceWarning $(if $(ONLY),-k "$(ONLY)")
	$(if $(ONLY),,$(BIN)/python -m tests.cycles --rounds $(or $(ROUNDS),3))

# Without Java or Maven it says so and ends; Apache Kafka comes from Maven Central, once.
judge: setup ## Run random operations on our log and on Kafka's, and compare them after each; SEEDS=1..1000 OPERATIONS=150
	$(BIN)/python -m tests.judge --seeds $(or $(SEEDS),1..1000) --operations $(or $(OPERATIONS),150)

partition-judge: setup ## Run random operations on our replica of a partition and on Kafka's; SEEDS=1..1000 OPERATIONS=150
	$(BIN)/python -m tests.partition_judge --seeds $(or $(SEEDS),1..1000) --operations $(or $(OPERATIONS),150)

wire-judge: setup ## Send the same requests to Apache Kafka and to ours, and compare the answers; SEEDS=1..300 AREAS=groups
	$(BIN)/python -m tests.wire_judge --seeds $(or $(SEEDS),1..300) $(if $(AREAS),--areas $(AREAS))

# Without Java, Maven or ZooKeeper it says so and ends.
cluster-judge: setup ## Do the same to three brokers of Apache Kafka and three of ours, and compare them; SEEDS=1..100 STEPS=12
	$(BIN)/python -m tests.cluster_judge --seeds $(or $(SEEDS),1..100) --steps $(or $(STEPS),12)

# Without Java, Go or Node a client is skipped, with the reason.
logins: setup ## Let six Kafka clients and Kafka's tools log in by every way, rightly and wrongly
	$(BIN)/python -m pytest tests/logins -m interop -n $(WORKERS) -p no:benchmark

# Needs root. The base image is made of Debian's packages, once.
image: setup ## Build the container image, and run a broker of it
	.ci/parts image
	$(BIN)/python -m pytest tests/deploy/test_image.py -p no:xdist -p no:benchmark

# Each trouble on three broker processes; the two with a full disk need the permission to mount.
troubles: setup ## Break three processes in 32 ways: health and why name each, and their step ends it; ONLY=min-isr
	$(BIN)/python -m pytest tests/troubles tests/cli/test_one_node.py -m interop -p no:xdist -p no:benchmark $(if $(ONLY),-k "$(ONLY)")

operators-hour: setup ## Run the commands of docs/operators-hour.md on real processes, and compare what they print
	$(BIN)/python -m pytest tests/deploy/test_operators_hour.py -p no:xdist -p no:benchmark

# Delta needs another Spark: it gets an environment of its own in build/delta, once. Its jars come from Maven Central.
spark-hour: setup ## Run the commands of docs/spark-hour.md with Spark and Delta, and compare what they print
	@.ci/parts java
	$(BIN)/python -m pytest tests/deploy/test_spark_hour.py -p no:xdist -p no:benchmark

watching: setup ## Check alert rules with Debian's Prometheus, the systemd unit, and docs/deploying.md on real processes
	.ci/parts prometheus
	$(BIN)/python -m pytest tests/deploy --ignore tests/deploy/test_operators_hour.py --ignore tests/deploy/test_spark_hour.py --ignore tests/deploy/test_image.py -m "interop or slow" -p no:xdist -p no:benchmark

# An alert looks at free space: on a disk that other programs fill meanwhile it is right to fire. DIR=DIRECTORY on a disk of its own.
watching-quiet: setup ## Let Prometheus watch 1,000 partitions under normal load: no alert may fire; MINUTES=60
	.ci/parts prometheus
	QUIET_MINUTES=$(or $(MINUTES),60) $(BIN)/python -m pytest tests/deploy/test_watching.py -k normal_load -s -p no:xdist -p no:benchmark $(if $(DIR),--basetemp $(DIR)/quiet)

console: setup ## Open every view of the console in Debian's Chromium; SCREENSHOTS=docs/drawings/console for its pictures
	.ci/parts chromium
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --editable '.[browser]'
	SCREENSHOTS=$(SCREENSHOTS) $(BIN)/python -m pytest tests/cli/console -p no:xdist -p no:benchmark

quotas: setup ## Hold two producers to their byte rates for a minute, beside a third without a quota
	$(BIN)/python -m pytest tests/broker/security/test_quotas_with_clients.py -m slow -p no:benchmark

# Without Java, Maven or pip's sdists a suite is skipped, with the reason.
suites: setup ## Run kafka-python's tests, Kafka's tools and applications against three brokers; ONLY=kafka-tools-4.1.1
	$(BIN)/python -m tests.suites $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json)

spark: setup parts ## Run the Spark tests on separate executor processes (minutes)
	$(BIN)/python -m tests.spark

spark-mistakes: setup parts ## Make each mistake of Spark's users in a session, and look at what it prints
	$(BIN)/python -m pytest tests/spark/test_mistakes.py -m "slow or not slow" -p no:benchmark

spark-comparison: setup parts ## Compare with Spark's own Kafka connector, option by option (minutes)
	$(BIN)/python -m tests.spark.comparison

read-judge: setup parts ## Run random queries and streams in Spark beside plain data; SEEDS=1..20 WITHOUT_SPARK=1 for a quick run
	$(BIN)/python -m tests.spark.read_judge --seeds $(or $(SEEDS),1..20) $(if $(WITHOUT_SPARK),--without-spark)

spark-restarts: setup parts ## Fail a Spark stream at every stage of its writes; RESTARTS=200
	$(BIN)/python -m tests.spark.kills --restarts $(or $(RESTARTS),200)
	$(BIN)/python -m tests.spark.restarts --restarts $(or $(RESTARTS),200)

verify-replicas: setup parts ## Find differences planted in three replica trees; ROUNDS=3 GIB=1
	ROUNDS=$(or $(ROUNDS),3) GIB=$(or $(GIB),1) $(BIN)/python -m pytest tests/spark/jobs/test_verify_campaign.py \
		-m slow -s -p no:benchmark

fuzz: setup ## Fuzz the parsers and the broker with atheris; RUNS=300000 of each target
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --editable '.[fuzz]'
	for target in headers frames requests served; do \
		$(BIN)/python -m tests.fuzz $$target $(or $(RUNS),300000) || exit 1; done

reader: setup ## Read a log for a minute while another process writes, truncates and compacts it
	$(BIN)/python -m pytest tests/reader tests/logstore/test_reader.py -p no:benchmark -s

# Hours on two cores; the last line is about the sink alone.
job-kills: setup parts ## Break off Spark jobs at every step: ONLY=stream RESTARTS=200 KILLED=20 SESSION=60 BROKERS=20 SEED=1
	$(BIN)/python -m tests.spark.job_kills --restarts $(or $(RESTARTS),200) --killed $(or $(KILLED),20) \
		--session $(or $(SESSION),60) --brokers $(or $(BROKERS),20) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY))
	$(if $(ONLY),,$(BIN)/python -m pytest tests/spark/job_kills tests/spark/jobs/test_ingest.py -m "slow and spark" -p no:benchmark)
	$(if $(ONLY),,$(MAKE) spark-restarts)

clean: ## Remove build results and caches
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
