"""Apache Kafka's command line tools, from Maven, against brokers of ours: what each must say and change.

The checks run in the order in which they are written; later ones find the topics of earlier ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.kafka.jars import jars
from logstore.cli.group_resets import csv_of
from logstore.disk.topic_partition import TopicPartition
from tests.interop.cluster import Cluster
from tests.suites.checks import results_of
from tests.suites.verdict import Result

VERSIONS: Final = ("3.9.1", "4.1.1")
_PATIENCE_S: Final = 180
TOOLS: Final = "org.apache.kafka.tools"
_TOPIC: Final = "tools"
_RECORDS: Final = 2_000

Check = Callable[["Tools"], None]
CHECKS: Final[list[Check]] = []


def check(function: Check) -> Check:
    """Add a check; it fails by any exception."""
    CHECKS.append(function)
    return function


def run(version: str, checks: Sequence[Check], cluster: Cluster, directory: Path) -> dict[str, Result]:
    """Run checks with the tools of a release; return their results by name.

    Raises `Missing` without Java or the jars.
    """
    return results_of(checks, Tools(version, cluster, directory), directory / "kafka-tools.txt")


class Tools:
    """Runs tools of a release against a cluster."""

    def __init__(self, version: str, cluster: Cluster, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        self._java = ["java", "-Xmx256M", "-XX:TieredStopAtLevel=1", "-cp", f"{jars(version)}/*"]
        is_moved = int(version.partition(".")[0]) >= 4
        self.api_versions = f"{TOOLS if is_moved else 'kafka.admin'}.BrokerApiVersionsCommand"
        self.console_producer = f"{TOOLS if is_moved else 'kafka.tools'}.ConsoleProducer"

    def command(self, tool: str, *arguments: str) -> list[str]:
        """Return the command that starts a tool."""
        return [*self._java, tool, *arguments]

    def run(self, tool: str, *arguments: str, code: int = 0, given: str = "") -> str:
        """Run a tool with `given` on its standard input; return what it says. It must end with `code`."""
        done = subprocess.run(
            self.command(tool, *arguments),
            input=given,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, (
            f"{tool} {' '.join(arguments)} ended with {done.returncode}: {said[-2000:]}"
        )
        return said

    def ask(self, tool: str, *arguments: str, code: int = 0, given: str = "") -> str:
        """`run` with the brokers' addresses."""
        return self.run(
            tool, "--bootstrap-server", self.cluster.bootstrap, *arguments, code=code, given=given
        )

    def topics(self, *arguments: str, code: int = 0) -> str:
        return self.ask(f"{TOOLS}.TopicCommand", *arguments, code=code)

    def configs(self, *arguments: str) -> str:
        return self.ask("kafka.admin.ConfigCommand", *arguments)

    def file(self, name: str, content: object) -> str:
        """Write JSON for a tool; return its path."""
        path = self.directory / name
        path.write_text(json.dumps(content))
        return str(path)

    def leaders(self) -> dict[int, int]:
        """Return the leader of each partition, as kafka-topics says."""
        rows = [
            row for row in self.topics("--describe", "--topic", _TOPIC).splitlines() if "Partition:" in row
        ]
        fields = [
            dict(pair.split(": ", 1) for pair in row.strip().split("\t") if ": " in pair) for row in rows
        ]
        return {int(each["Partition"]): int(each["Leader"]) for each in fields}

    def until(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not holds():
            assert time.monotonic() < end, f"{what} did not happen within {_PATIENCE_S} s"


def rows_of(said: str) -> list[dict[str, Any]]:
    """Return the JSON objects among the lines of a tool."""
    return [json.loads(row) for row in said.splitlines() if row.startswith("{")]


# --- topics and settings ------------------------------------------------------------------------------


@check
def topics_create_and_describe(tools: Tools) -> None:
    tools.topics("--create", "--topic", _TOPIC, "--partitions", "1", "--replication-factor", "3")
    assert sorted(tools.leaders()) == [0]
    assert _TOPIC in tools.topics("--list").split()


@check
def topics_refuse_a_second_of_the_name(tools: Tools) -> None:
    said = tools.topics("--create", "--topic", _TOPIC, "--partitions", "1", code=1)
    assert "exists" in said, said


@check
def topics_refuse_too_many_replicas(tools: Tools) -> None:
    said = tools.topics("--create", "--topic", "too-many", "--replication-factor", "4", code=1)
    assert "replica" in said, said


@check
def topics_alter_adds_partitions(tools: Tools) -> None:
    tools.topics("--create", "--topic", "grows", "--partitions", "1", "--replication-factor", "2")
    tools.topics("--alter", "--topic", "grows", "--partitions", "4")
    assert "PartitionCount: 4" in tools.topics("--describe", "--topic", "grows")


@check
def topics_under_replicated_is_empty(tools: Tools) -> None:
    assert "Partition:" not in tools.topics("--describe", "--under-replicated-partitions")


@check
def topics_of_a_condition(tools: Tools) -> None:
    """Options that select partitions or topics, and those that take an absent or a present one for done."""
    settings = ("--replication-factor", "2", "--config", "min.insync.replicas=2")
    tools.topics("--create", "--topic", "at-min", "--partitions", "1", *settings)
    assert "Topic: at-min" in tools.topics("--describe", "--at-min-isr-partitions")
    assert "Partition:" not in tools.topics("--describe", "--under-min-isr-partitions")
    overridden = tools.topics("--describe", "--topics-with-overrides")
    assert "Topic: at-min" in overridden
    assert f"Topic: {_TOPIC}\t" not in overridden
    tools.topics("--create", "--if-not-exists", "--topic", "at-min", "--partitions", "1")
    tools.topics("--delete", "--topic", "at-min")
    tools.until(lambda: "at-min" not in tools.topics("--list").split(), "deletion")
    tools.topics("--delete", "--if-exists", "--topic", "at-min")
    tools.topics("--describe", "--if-exists", "--topic", "at-min")
    said = tools.topics("--delete", "--topic", "at-min", code=1)
    assert "does not exist" in said, said


@check
def topics_delete(tools: Tools) -> None:
    tools.topics("--create", "--topic", "goes", "--partitions", "1")
    tools.topics("--delete", "--topic", "goes")
    tools.until(lambda: "goes" not in tools.topics("--list").split(), "deletion")


@check
def configs_of_a_topic(tools: Tools) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", _TOPIC)
    tools.configs("--alter", *of_topic, "--add-config", "retention.ms=86400000,max.message.bytes=2000000")
    assert "retention.ms=86400000" in tools.configs("--describe", *of_topic)
    tools.configs("--alter", *of_topic, "--delete-config", "retention.ms")
    assert "retention.ms=86400000" not in tools.configs("--describe", *of_topic)


@check
def configs_of_a_broker(tools: Tools) -> None:
    of_broker = ("--entity-type", "brokers", "--entity-name", "1")
    assert "log.retention" in tools.configs("--describe", *of_broker, "--all")


@check
def quotas_of_addresses(tools: Tools) -> None:
    """None that these tools themselves would feel."""
    of_ips = ("--entity-type", "ips")
    tools.configs(
        "--alter", *of_ips, "--entity-name", "192.0.2.1", "--add-config", "connection_creation_rate=5"
    )
    tools.configs("--alter", *of_ips, "--entity-default", "--add-config", "connection_creation_rate=5000")
    said = tools.configs("--describe", *of_ips)
    assert "ip '192.0.2.1' are connection_creation_rate=5.0" in said
    assert "default ip are connection_creation_rate=5000.0" in said
    tools.configs(
        "--alter", *of_ips, "--entity-name", "192.0.2.1", "--delete-config", "connection_creation_rate"
    )
    assert "192.0.2.1" not in tools.configs("--describe", *of_ips)


@check
def broker_api_versions(tools: Tools) -> None:
    said = tools.ask(tools.api_versions)
    assert said.count("(id: ") == 3
    assert "Produce(0): " in said


@check
def features(tools: Tools) -> None:
    """There are none: the answer to ApiVersions lists no feature, as from Kafka's brokers with ZooKeeper."""
    assert "SupportedMinVersion" not in tools.ask(f"{TOOLS}.FeatureCommand", "describe")


@check
def cluster_id(tools: Tools) -> None:
    assert "Cluster ID: " in tools.run(
        f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", tools.cluster.bootstrap
    )


@check
def log_dirs(tools: Tools) -> None:
    said = tools.ask(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", _TOPIC)
    found = json.loads(next(row for row in said.splitlines() if row.startswith("{")))
    assert len(found["brokers"]) == 3
    assert all(each["error"] is None for broker in found["brokers"] for each in broker["logDirs"])


# --- records ------------------------------------------------------------------------------------------


@check
def verifiable_producer(tools: Tools) -> None:
    said = tools.ask(
        f"{TOOLS}.VerifiableProducer", "--topic", _TOPIC, "--max-messages", str(_RECORDS), "--acks", "-1"
    )
    (total,) = (each for each in rows_of(said) if each["name"] == "tool_data")
    assert (total["sent"], total["acked"]) == (_RECORDS, _RECORDS), total


@check
def verifiable_consumer(tools: Tools) -> None:
    said = tools.ask(
        f"{TOOLS}.VerifiableConsumer",
        *("--topic", _TOPIC, "--group-id", "verifiable", "--max-messages", str(_RECORDS)),
        *("--reset-policy", "earliest"),
    )
    rows = rows_of(said)
    assert sum(row["count"] for row in rows if row["name"] == "records_consumed") >= _RECORDS
    assert all(row["success"] for row in rows if row["name"] == "offsets_committed")


@check
def console_producer_and_consumer(tools: Tools) -> None:
    tools.ask(tools.console_producer, "--topic", "console", given="one\ntwo\nthree\n")
    said = tools.ask(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--topic", "console", "--from-beginning", "--max-messages", "3", "--timeout-ms", "60000"),
    )
    assert [row for row in said.splitlines() if row in ("one", "two", "three")] == ["one", "two", "three"]


@check
def producer_and_consumer_performance(tools: Tools) -> None:
    sizes = ("--num-records", str(_RECORDS), "--record-size", "100", "--throughput", "-1")
    way = ("--producer-props", f"bootstrap.servers={tools.cluster.bootstrap}", "acks=all")
    said = tools.run(f"{TOOLS}.ProducerPerformance", "--topic", "console", *sizes, *way)
    assert f"{_RECORDS} records sent" in said, said
    ends = ("--topic", "console", "--messages", str(_RECORDS), "--timeout", "60000")
    said = tools.ask(f"{TOOLS}.ConsumerPerformance", *ends)
    assert "MB.sec" in said, said
    assert "Exiting before consuming" not in said, said


@check
def get_offsets(tools: Tools) -> None:
    said = tools.ask(f"{TOOLS}.GetOffsetShell", "--topic", _TOPIC)
    ends = [int(row.rsplit(":", 1)[1]) for row in said.splitlines() if row.startswith(f"{_TOPIC}:")]
    assert ends == [_RECORDS], said


@check
def delete_records(tools: Tools) -> None:
    wanted = {"partitions": [{"topic": _TOPIC, "partition": 0, "offset": 5}], "version": 1}
    path = tools.file("delete.json", wanted)
    said = tools.ask(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", path)
    assert "low_watermark: 5" in said, said
    said = tools.ask(f"{TOOLS}.GetOffsetShell", "--topic", _TOPIC, "--time", "-2")
    assert f"{_TOPIC}:0:5" in said, said


@check
def dump_log(tools: Tools) -> None:
    """Of the very files that a broker of ours has written."""
    (log, *_) = sorted((tools.directory / "data-1").glob(f"{_TOPIC}-0/*.log"))
    index = log.with_suffix(".index")  # an index without an entry has no file
    files = ",".join(str(each) for each in (log, index) if each.exists())
    said = tools.run("kafka.tools.DumpLogSegments", "--files", files, "--deep-iteration")
    assert "isvalid: true" in said, said
    assert "isvalid: false" not in said
    assert "Mismatches" not in said


@check
def replica_verification(tools: Tools) -> None:
    """It reads every replica, with replica id -2, and ends only when it is stopped."""
    command = tools.command(
        f"{TOOLS}.ReplicaVerificationTool",
        *("--broker-list", tools.cluster.bootstrap, "--topics-include", _TOPIC),
        *("--report-interval-ms", "1000", "--time", "-2"),
    )
    rows: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        stopper = threading.Timer(_PATIENCE_S, running.kill)
        stopper.start()
        assert running.stdout is not None
        for row in running.stdout:
            rows.append(row)
            if "max lag is" in row and f"at offset {_RECORDS} " in row:
                break
        stopper.cancel()
        running.kill()
    assert "max lag is 0 " in rows[-1], rows[-20:]


# --- groups -------------------------------------------------------------------------------------------


@check
def consumer_groups_list_and_describe(tools: Tools) -> None:
    groups = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    said = tools.ask(groups, "--list")
    assert "verifiable" in said.split(), said
    said = tools.ask(groups, "--describe", "--group", "verifiable")
    assert f"verifiable      {_TOPIC}" in said, said


@check
def consumer_groups_reset_offsets(tools: Tools) -> None:
    groups = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    of_group = ("--group", "verifiable", "--topic", _TOPIC)
    tools.ask(groups, "--reset-offsets", *of_group, "--to-offset", "7", "--execute")
    said = tools.ask(groups, "--describe", "--group", "verifiable")
    rows = [row.split() for row in said.splitlines()]
    assert [row[3] for row in rows if row[:2] == ["verifiable", _TOPIC]] == ["7"], said


@check
def consumer_groups_by_state_and_type(tools: Tools) -> None:
    groups = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    said = tools.ask(groups, "--list", "--state", "Empty")
    assert any(row.split() == ["verifiable", "Empty"] for row in said.splitlines()), said
    said = tools.ask(groups, "--list", "--type", "classic")
    assert any(row.split() == ["verifiable", "Classic"] for row in said.splitlines()), said
    assert "verifiable" not in tools.ask(groups, "--list", "--type", "consumer")


@check
def consumer_groups_export_and_reset_from_a_file(tools: Tools) -> None:
    """The files of Kafka's tool and of ours are the same."""
    groups = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    of_group = ("--reset-offsets", "--group", "verifiable")
    said = tools.ask(groups, *of_group, "--topic", _TOPIC, "--by-duration", "PT1H", "--export", "--dry-run")
    assert f"{_TOPIC},0,5" in said.splitlines(), said
    path = tools.directory / "offsets.csv"
    path.write_text(csv_of({"verifiable": {TopicPartition(_TOPIC, 0): 9}}, with_groups=False))
    tools.ask(groups, *of_group, "--from-file", str(path), "--execute")
    said = tools.ask(groups, *of_group, "--topic", _TOPIC, "--to-current", "--export", "--dry-run")
    assert f"{_TOPIC},0,9" in said.splitlines(), said


@check
def consumer_groups_delete_offsets(tools: Tools) -> None:
    groups = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    said = tools.ask(groups, "--delete-offsets", "--group", "verifiable", "--topic", _TOPIC)
    assert re.search("Request succeed(ed)? for deleting offsets", said), said


@check
def consumer_groups_delete(tools: Tools) -> None:
    groups = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    tools.ask(groups, "--delete", "--group", "verifiable")
    said = tools.ask(groups, "--list")
    assert "verifiable" not in said.split(), said


# --- leaders and replicas -----------------------------------------------------------------------------


def reassign(tools: Tools, replicas: list[int], *options: str) -> str:
    """Execute a plan for partition 0, and verify it until it is complete; return the last words."""
    wanted = [{"topic": _TOPIC, "partition": 0, "replicas": replicas}]
    plan = tools.file("plan.json", {"version": 1, "partitions": wanted})
    tool = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    tools.ask(tool, "--reassignment-json-file", plan, "--execute", *options)
    said = ""

    def is_complete() -> bool:
        nonlocal said
        said = tools.ask(tool, "--reassignment-json-file", plan, "--verify")
        return "is completed" in said

    tools.until(is_complete, "reassignment")
    return said


@check
def reassign_partitions_generate(tools: Tools) -> None:
    topics = tools.file("topics.json", {"topics": [{"topic": _TOPIC}], "version": 1})
    tool = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    said = tools.ask(tool, "--topics-to-move-json-file", topics, "--broker-list", "0,1,2", "--generate")
    current, proposed = rows_of(said)
    assert [len(each["partitions"]) for each in (current, proposed)] == [1, 1]
    assert set(proposed["partitions"][0]["replicas"]) <= {0, 1, 2}


@check
def reassign_partitions(tools: Tools) -> None:
    reassign(tools, [2, 1])
    assert "Replicas: 2,1\t" in tools.topics("--describe", "--topic", _TOPIC)


@check
def reassign_partitions_cancel_and_list(tools: Tools) -> None:
    """Both end with 0 though nothing moves, and `--cancel` deletes throttles that were never set."""
    wanted = [{"topic": _TOPIC, "partition": 0, "replicas": [2, 1]}]
    plan = tools.file("plan.json", {"version": 1, "partitions": wanted})
    tool = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    said = tools.ask(tool, "--reassignment-json-file", plan, "--cancel")
    assert "None of the specified partition reassignments are active." in said, said
    assert "Clearing broker-level throttles on brokers 0,1,2" in said, said
    assert f"Clearing topic-level throttles on topic {_TOPIC}" in said, said
    assert "No partition reassignments found." in tools.ask(tool, "--list")


@check
def reassign_partitions_with_a_throttle(tools: Tools) -> None:
    said = reassign(tools, [0, 1], "--throttle", "50000000")
    assert "Clearing" in said, said


def homes(tools: Tools) -> dict[int, str]:
    """Return the log dir of partition 0 on each broker that has it, as kafka-log-dirs says."""
    said = tools.ask(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", _TOPIC)
    found = json.loads(next(row for row in said.splitlines() if row.startswith("{")))
    return {
        broker["broker"]: log_dir["logDir"]
        for broker in found["brokers"]
        for log_dir in broker["logDirs"]
        for each in log_dir["partitions"]
        if each["partition"] == f"{_TOPIC}-0" and not each["isFuture"]
    }


@check
def reassign_partitions_between_log_dirs(tools: Tools) -> None:
    """A plan with log dirs: both replicas move on their brokers; then back, with a throttle."""
    before = homes(tools)
    assert before.keys() == {0, 1}, before
    for options in ((), ("--replica-alter-log-dirs-throttle", "50000000")):
        wanted = {
            broker: next(each for each in tools.cluster.log_dirs[broker] if each != home)
            for broker, home in homes(tools).items()
        }
        partition = {"topic": _TOPIC, "partition": 0, "replicas": [0, 1], "log_dirs": [wanted[0], wanted[1]]}
        plan = tools.file("plan.json", {"version": 1, "partitions": [partition]})
        tool = f"{TOOLS}.reassign.ReassignPartitionsCommand"
        said = tools.ask(tool, "--reassignment-json-file", plan, "--execute", *options)
        assert said.count("Successfully started moving log directory to") == 2, said
        tools.until(lambda plan=plan: _are_moved(tools, plan), "the moves between log dirs")  # type: ignore[misc]
        assert homes(tools) == wanted
    assert homes(tools) == before


def _are_moved(tools: Tools, plan: str) -> bool:
    tool = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    said = tools.ask(tool, "--reassignment-json-file", plan, "--verify")
    return said.count("completed successfully") >= 2


@check
def reassign_partitions_to_a_named_log_dir(tools: Tools) -> None:
    """The log of a new replica is made in the log dir that the plan names for it."""
    place = tools.cluster.log_dirs[2][1]
    partition = {"topic": _TOPIC, "partition": 0, "replicas": [0, 2], "log_dirs": ["any", place]}
    plan = tools.file("plan.json", {"version": 1, "partitions": [partition]})
    tool = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    tools.ask(tool, "--reassignment-json-file", plan, "--execute", "--timeout", "60000")
    tools.until(lambda: homes(tools).get(2) == place, "the replica on broker 2")
    assert "is completed" in tools.ask(tool, "--reassignment-json-file", plan, "--verify")


@check
def leader_election(tools: Tools) -> None:
    election = f"{TOOLS}.LeaderElectionCommand"
    tools.ask(election, "--election-type", "preferred", "--all-topic-partitions")
    row = tools.topics("--describe", "--topic", _TOPIC, "--unavailable-partitions")
    assert "Partition:" not in row, row
    tools.until(lambda: tools.leaders()[0] in (0, 2), "the first replica of partition 0 to lead")


@check
def leader_election_unclean(tools: Tools) -> None:
    """Where there is a leader nothing changes; an election is tested on simulated brokers."""
    election = f"{TOOLS}.LeaderElectionCommand"
    said = tools.ask(election, "--election-type", "unclean", "--topic", _TOPIC, "--partition", "0")
    assert "Valid replica already elected" in said, said
