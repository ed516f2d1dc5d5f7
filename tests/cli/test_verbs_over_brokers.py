"""The operators' verbs over brokers: the same words as over the metadata store, by Kafka's admin requests.

Three brokers of ours; with `-m slow` also three of Apache Kafka 3.9, and of 4.1, which need Java and jars.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

from bench.kafka.jars import Missing, jars
from bench.kafka.servers import Kafka
from logstore.broker import BlockingClient, BrokerCluster
from logstore.broker.connections import Connections
from logstore.broker.errors import MalformedMessage
from logstore.broker.limits import Address
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.cli.brokers import Brokers, NoController
from logstore.cli.group_facts import partitions_in
from logstore.cli.operating import wait_until
from logstore.cli.throttles import LISTS
from logstore.disk.topic_partition import TopicPartition
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]
_SLOW = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(
    scope="module",
    params=["ours", *(pytest.param(each, marks=_SLOW) for each in ("3.9.1", "4.1.1"))],
)
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Three brokers with the ids 1 to 3."""
    if request.param == "ours":
        with BrokerCluster(3) as running:
            yield running.bootstrap
        return
    try:
        servers = Kafka(tmp_path_factory.mktemp("kafka"), 3, version=request.param, jars=jars(request.param))
    except Missing as error:
        pytest.fail(str(error))
    try:
        servers.start_all()
        servers.wait_until_whole()
        yield servers.bootstrap
    finally:
        servers.end_all()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Struct]:
    """The requests that verbs send, in order."""
    requests: list[Struct] = []
    plain = Connections.ask_wire

    async def heard(self: Connections, address: Address, request: Struct) -> Struct:
        requests.append(request)
        return await plain(self, address, request)

    monkeypatch.setattr(Connections, "ask_wire", heard)
    return requests


def append(bootstrap: str, topic: str, values: list[bytes]) -> None:
    with closing(BlockingClient(bootstrap)) as client:
        client.append(topic, values, partition=0)


def lines(ended: Outcome) -> list[dict[str, Any]]:
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


@pytest.fixture
def over(command: Command, bootstrap: str) -> Command:
    """Run a verb over these brokers."""
    return lambda *words: command(*words, "--bootstrap", bootstrap)


def test_a_topic_from_its_creation_to_its_deletion(over: Command) -> None:
    (made,) = lines(
        over(
            "topics", "create", "orders", "--partitions", 3, "--replication-factor", 2,
            "--config", "min.insync.replicas=2", "--wait", 30, "--json",
        )
    )  # fmt: skip
    assert made["is_done"]
    assert {"topic": "orders", "is_being_deleted": False} in lines(over("topics", "list", "--json"))
    partitions = lines(over("topics", "describe", "orders", "--json"))
    assert [each["partition"] for each in partitions] == [0, 1, 2]
    assert all(each["leader"] == each["replicas"][0] and each["is_available"] for each in partitions)
    assert f"orders  id {made['topic_id']}  min.insync.replicas=2" in over("topics", "describe", "orders").out
    altered = over(
        "topics", "alter", "orders", "--partitions", 4, "--config", "retention.ms=1000",
        "--delete-config", "min.insync.replicas",
    )  # fmt: skip
    assert altered.code == 0, altered.err
    assert "keys" not in altered.err
    text = over("topics", "describe", "orders").out
    assert "  retention.ms=1000\n" in text
    assert text.count("orders-") == 4
    assert over("topics", "delete", "orders", "--wait", 30).code == 0
    assert {"topic": "orders", "is_being_deleted": False} not in lines(over("topics", "list", "--json"))


def test_a_topic_gets_the_defaults_of_the_brokers(over: Command, asked: list[Struct]) -> None:
    """As with Kafka's tool: numbers that nobody names are left to the brokers."""
    assert over("topics", "create", "plain", "--wait", 30).code == 0
    (request,) = [each for each in asked if isinstance(each, t.CreateTopicsRequest)]
    assert [(each.num_partitions, each.replication_factor) for each in request.topics] == [(-1, -1)]
    assert over("topics", "delete", "plain", "--wait", 30).code == 0


def test_topics_that_are_selected(over: Command) -> None:
    """By a pattern, by settings of their own, by how many replicas may still go."""
    settings = ("--replication-factor", 3, "--config", "min.insync.replicas=3")
    assert over("topics", "create", "chosen.at", *settings, "--wait", 30).code == 0
    assert over("topics", "create", "chosen.above", "--replication-factor", 3, "--wait", 30).code == 0
    assert over("topics", "list", "--match", r"chosen\..*").out.split() == ["chosen.above", "chosen.at"]
    chosen = ("topics", "describe", "--match", r"chosen\..*")
    assert over(*chosen, "--topics-with-overrides").out == "chosen.at  min.insync.replicas=3\n"
    assert wait_until(
        30,
        lambda: [each["topic"] for each in lines(over(*chosen, "--at-min-isr", "--json"))] == ["chosen.at"],
    )
    assert over(*chosen, "--under-min-isr").out == ""
    assert over("topics", "alter", "chosen.above", "--config", "min.insync.replicas=4").code == 0
    under = over(*chosen, "--under-min-isr", "--json")
    assert [each["topic"] for each in lines(under)] == ["chosen.above"]
    assert "is not a regular expression" in over("topics", "list", "--match", "(").err


def test_what_is_done_already_is_no_error_if_so_said(over: Command) -> None:
    assert over("topics", "create", "twice", "--wait", 30).code == 0
    assert over("topics", "create", "twice").code == 1
    assert over("topics", "create", "twice", "--partitions", 7, "--if-not-exists").code == 0
    assert len(lines(over("topics", "describe", "twice", "--json"))) == 1
    for verb in (("delete",), ("describe",), ("alter", "--partitions", 2)):
        assert over("topics", *verb, "never").code == 1
        ended = over("topics", *verb, "never", "--if-exists")
        assert (ended.code, ended.out) == (0, ""), ended.err


def test_replicas_are_compared_over_the_wire(over: Command, bootstrap: str) -> None:
    assert over("topics", "create", "copied", "--replication-factor", 3, "--wait", 30).code == 0
    append(bootstrap, "copied", [b"x"] * 10)

    def is_whole() -> bool:
        found, _ = lines(over("compare-replicas", "--topics", "copied", "--json"))
        assert (found["difference"], found["left_out"]) == (None, {})
        return (found["to"], found["lag"]) == (10, 0)

    assert wait_until(60, is_whole)


def test_why_over_any_brokers(over: Command) -> None:
    """Without the tags of our brokers it says less; it says so, and nothing wrong."""
    assert over("topics", "create", "asked-why", "--replication-factor", 3, "--wait", 30).code == 0
    for words in (("asked-why-0",), ("broker", 1), ("cluster",)):
        told = over("why", *words)
        assert (told.code, told.err) == (0, ""), told.out
    assert over("why", "group", "none").err == "logstore: no group none\n"


def test_a_cluster_without_a_controller_is_said_to_be_one(
    over: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`health` and `why` are asked for when nothing works; what only the controller knows is missing then."""

    def nobody(self: Brokers, request: Struct, **times_s: float) -> Any:
        raise NoController("the cluster has no controller")

    monkeypatch.setattr(Brokers, "controller", nobody)
    for words in (("health",), ("why", "cluster")):
        told = over(*words)
        assert (told.code, told.err) == (1, "")
        assert "no controller is active" in told.out


def test_replicas_placed_round_robin(over: Command) -> None:
    """Replica j of partition i is on broker (i + j) mod 3 of 1, 2, 3: sent as an explicit assignment."""
    options = ["--placement", "round-robin", "--partitions", "4", "--replication-factor", "2"]
    made = over("topics", "create", "placed", *options, "--wait", 30)
    assert (made.code, made.err) == (0, "")
    partitions = lines(over("topics", "describe", "placed", "--json"))
    assert [each["replicas"] for each in partitions] == [[1, 2], [2, 3], [3, 1], [1, 2]]
    refused = over("topics", "create", "wide", *options[:-1], 9)
    assert refused.code == 1
    assert "live brokers (3)" in refused.err


@pytest.mark.parametrize(
    ("verb", "keys"),
    [
        (("topics", "list"), []),
        (("topics", "describe", "asked", "--json"), [None]),
        (("topics", "describe", "asked", "--under-min-isr"), [["min.insync.replicas"]]),
        (("topics", "describe", "--under-replicated"), []),
        (("elect-preferred", "asked-0"), []),
        (("health",), [["min.insync.replicas", *LISTS]]),
        (("topics", "describe", "asked"), [None]),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_settings_are_asked_for_only_where_they_count(
    over: Command, asked: list[Struct], verb: tuple[str, ...], keys: list[list[str] | None]
) -> None:
    """`keys` are the names asked for by each request for settings; None asks for all."""
    over("topics", "create", "asked", "--wait", 60)
    asked.clear()
    over(*verb)
    described = [each for each in asked if isinstance(each, t.DescribeConfigsRequest)]
    assert [each.resources[0].configuration_keys for each in described] == keys


def test_what_the_controller_refuses_is_its_own_words(over: Command) -> None:
    refused = over("topics", "create", "wide", "--replication-factor", 9)
    assert refused.code == 1
    assert "topic wide: " in refused.err
    assert "INVALID_REPLICATION_FACTOR" in refused.err or "replication factor" in refused.err.lower()
    assert over("topics", "create", "similar", "--wait", 60).code == 0
    for verb in (
        ("topics", "delete", "similr"),
        ("topics", "describe", "similr"),
        ("topics", "alter", "similr", "--partitions", 9),
        ("configs", "describe", "--topic", "similr"),
    ):
        refused = over(*verb)
        assert (refused.code, refused.err) == (1, "logstore: no topic 'similr'; did you mean 'similar'?\n")
    assert "no topic 'none'; `logstore topics list` shows all" in over("topics", "delete", "none").err
    assert over("topics", "create", "by-hand", "--replica-assignment", "0:77").code == 1


def test_what_a_deletion_waits_for(command: Command) -> None:
    """Brokers forget a topic at once; the controller tells what its deletion waits for, until it is over."""
    with BrokerCluster(3) as running:
        over = ("--bootstrap", running.brokers[1].bootstrap)
        assert (
            command("topics", "create", "gone", "--replica-assignment", "1:3", "--wait", 30, *over).code == 0
        )
        running.stop(3)
        assert wait_until(60, lambda: len(lines(command("brokers", "list", "--json", *over))) == 2)
        ended = command("topics", "delete", "gone", "--wait", 0.1, *over)
        assert ended.code == 1
        assert "not deleted yet: it waits for broker 3 (not alive) for gone-0" in ended.err
        told = "gone (being deleted, waits for broker 3 (not alive) for gone-0)\n"
        assert command("topics", "list", *over).out == command("topics", "describe", *over).out == told
        assert command("topics", "describe", "gone", *over).out == told
        seen = command("health", *over)
        assert "broker 3: it is down: 1 deletion waits for it (topic gone)" in seen.out
        running.start(3)
        assert wait_until(60, lambda: command("topics", "list", *over).out == "")


def test_a_deletion_that_is_disabled(command: Command) -> None:
    with BrokerCluster(1, settings={"delete.topic.enable": "false"}) as running:
        over = ("--bootstrap", running.bootstrap)
        assert command("topics", "create", "kept", *over).code == 0
        refused = command("topics", "delete", "kept", *over)
        assert refused.code == 1
        assert "topic deletion is disabled; set delete.topic.enable=true on the brokers" in refused.err
        assert command("topics", "list", *over).out == "kept\n"


def test_leaders_go_back_to_the_preferred_replicas(over: Command, bootstrap: str) -> None:
    assert over("topics", "create", "led", "--replica-assignment", "1:2,2:3", "--wait", 30).code == 0
    elected = lines(over("elect-preferred", "led-0", "led-1", "--wait", 30, "--json"))
    assert [each["leader"] for each in elected] == [each["preferred"] for each in elected] == [1, 2]
    assert [each["is_needed"] for each in elected] == [False, False]
    said = over("elect-preferred", "led-1").out
    assert said == "led-1  leader 2  nothing to elect: it led already\n"
    nothing = over("elect-preferred", "none-0")
    assert nothing.code == 1
    assert "no partition none-0: skipped" in nothing.err


def test_an_unclean_election_by_command(command: Command) -> None:
    """Only with --accept-loss, and only where there is no leader."""
    with BrokerCluster(3) as running:
        over = ("--bootstrap", running.brokers[1].bootstrap)
        made = command("topics", "create", "torn", "--replica-assignment", "3:2", "--wait", 30, *over)
        assert made.code == 0, made.err
        fine = command("elect-unclean", "torn-0", "--accept-loss", *over)
        assert (fine.code, fine.out) == (0, "torn-0  leader 3  nothing to elect: it has a leader\n")

        def state() -> tuple[int, list[int]]:
            (found,) = lines(command("topics", "describe", "torn", "--json", *over))
            return found["leader"], found["isr"]

        append(running.bootstrap, "torn", [b"both"])
        running.stop(2)
        assert wait_until(60, lambda: state() == (3, [3]))
        append(running.bootstrap, "torn", [b"only 3"] * 4)
        running.kill(3)
        running.start(2)
        assert wait_until(60, lambda: state() == (-1, [3]))
        told = command("elect-unclean", "torn-0", *over)
        assert told.code == 1
        assert told.out.splitlines() == [
            "torn-0  no leader  ISR 3, live replicas 2",
            "  may be lost  what broker 3 alone may have",
            "  better       start broker 3: it has all committed records",
        ]
        assert "--accept-loss elects leaders that may lack committed records" in told.err
        assert state()[0] == -1, "nothing was elected"
        (done,) = lines(command("elect-unclean", "torn-0", "--accept-loss", "--json", *over))
        assert (done["is_needed"], done["is_done"], done["isr_before"]) == (True, True, [3])
        assert wait_until(60, lambda: state()[0] == 2)
        (end,) = lines(command("offsets", "torn", "--json", *over))
        assert end["offset"] == 1, "the four records of broker 3 are given up"
        assert "no partition torn-9" in command("elect-unclean", "torn-9", *over).err


def test_replicas_move_and_the_plan_is_verified(over: Command, tmp_path: Path) -> None:
    assert over("topics", "create", "moved", "--replica-assignment", "1:2", "--wait", 30).code == 0
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text('{"version":1,"topics":[{"topic":"moved"}]}')
    proposed = json.loads(over("reassign", "generate", topics, "--broker-list", "2,3", "--json").out)
    assert proposed["current"]["partitions"][0]["replicas"] == [1, 2]
    plan.write_text(json.dumps(proposed["proposed"]))
    executed = over("reassign", "execute", plan, "--wait", 60)
    assert executed.code == 0, executed.err
    (verified,) = lines(over("reassign", "verify", plan, "--json"))
    assert (verified["standing"], sorted(verified["replicas"])) == ("completed", [2, 3])
    assert over("reassign", "list").out == "no reassignment is in progress\n"
    over_already = over("reassign", "cancel", plan)
    assert over_already.code == 1
    assert "none of these partitions is being reassigned" in over_already.err


def test_a_throttled_move_is_told_hurried_and_its_throttles_removed(
    over: Command, bootstrap: str, tmp_path: Path
) -> None:
    assert over("topics", "create", "slow", "--replica-assignment", "1:2", "--wait", 30).code == 0
    append(bootstrap, "slow", [Random(each).randbytes(1 << 16) for each in range(40)])
    plan = tmp_path / "plan.json"
    moved = [{"topic": "slow", "partition": 0, "replicas": [1, 2, 3]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moved}))
    # One fetch of 1 MiB, and nothing for the next hundred seconds.
    executed = over("reassign", "execute", plan, "--throttle", 10_000)
    assert executed.code == 0, executed.err
    assert "throttled to 10000 bytes/s on brokers 1, 2, 3" in executed.err
    throttle = {"leader": {"1": 10_000, "2": 10_000}, "follower": {"3": 10_000}}
    (listed,) = lines(over("reassign", "list", "--json"))
    assert (listed["adding"], listed["throttle"]) == ([3], throttle)
    in_words = "throttled: leader 1 at 10000, leader 2 at 10000, follower 3 at 10000 bytes/s"
    assert in_words in over("reassign", "list").out
    verified = over("reassign", "verify", plan)
    assert (verified.code, verified.out) == (1, f"slow-0  still in progress  {in_words}\n")
    why = over("why", "slow-0").out
    assert "it is being reassigned at a throttled rate, and waits for broker 3" in why
    assert in_words in why
    append(bootstrap, "slow", [b"acknowledged by those in sync"])
    again = over("reassign", "execute", plan, "--throttle", 5)
    assert again.code == 1
    assert "a reassignment is in progress" in again.err
    hurried = over("reassign", "execute", plan, "--additional", "--throttle", 100_000_000)
    assert hurried.code == 0, hurried.err
    kept = over("reassign", "verify", plan, "--wait", 60, "--preserve-throttles")
    assert (kept.code, kept.out) == (0, "slow-0  completed\n")
    assert "throttled.replicas" in over("topics", "describe", "slow").out
    verified = over("reassign", "verify", plan)
    assert verified.out == "slow-0  completed\nthrottles removed: brokers 1, 2, 3; topics slow\n"
    assert "throttled.replicas" not in over("topics", "describe", "slow").out
    assert over("reassign", "verify", plan).out == "slow-0  completed\n"


def test_one_way_to_the_cluster_is_given(command: Command, bootstrap: str) -> None:
    for words in ([], ["--bootstrap", bootstrap, "--metadata", "zookeeper://127.0.0.1:1"]):
        ended = command("topics", "list", *words)
        assert ended.code == 2
        assert "give --bootstrap HOST:PORT, or --metadata URL" in ended.err


def test_a_wrong_address_fails_at_once_with_one_line(command: Command) -> None:
    ended = command("topics", "list", "--bootstrap", "127.0.0.1:1")
    assert ended.code == 1
    assert ended.err.startswith("logstore: no broker answers: failed to connect to 127.0.0.1:1")
    assert ended.err.count("\n") == 1
    assert command("topics", "list", "--bootstrap", "nowhere").code == 2


# --- groups, settings, offsets, sizes -------------------------------------------------------------------


def test_a_group_from_its_first_commit_to_its_deletion(over: Command, bootstrap: str) -> None:
    assert over("topics", "create", "read", "--partitions", 2, "--wait", 30).code == 0
    append(bootstrap, "read", [b"x"] * 10)
    with closing(BlockingClient(bootstrap)) as client:
        client.topic("read").partition(0).cursor("billing").commit(4)
    assert {"group": "billing", "state": "Empty"}.items() <= lines(over("groups", "list", "--json"))[
        0
    ].items()
    (found,) = lines(over("groups", "describe", "billing", "--json"))
    assert (found["committed"], found["end"], found["lag"], found["member"]) == (4, 10, 6, None)
    mistyped = over("groups", "reset", "biling", "read", "--to", "latest", "--plan")
    assert (mistyped.code, mistyped.err) == (
        0,
        "logstore: there is no group biling yet; its first commit creates it\n",
    )
    planned = over("groups", "reset", "billing", "read", "--to", "latest", "--plan")
    assert planned.out.splitlines() == ["read-0  4 -> 10", "read-1  - -> 0"]
    for to, expected in (("+3", 7), ("=-2", 5), ("earliest", 0), ("2", 2), ("99", 10), ("@0", 0)):
        option = ["--to" + to] if to.startswith("=") else ["--to", to]
        (moved,) = lines(over("groups", "reset", "billing", "read-0", *option, "--json"))
        assert (moved["to"], moved["is_done"]) == (expected, True), to
    assert "write earliest, latest" in over("groups", "reset", "billing", "read-0", "--to", "soon").err
    assert over("groups", "delete", "billing").code == 0
    assert over("groups", "describe", "billing").err == "logstore: no group billing\n"


def test_offsets_of_several_groups_are_exported_reset_and_read_back(
    over: Command, bootstrap: str, tmp_path: Path
) -> None:
    """One group and several, by Kafka's files; the time of the first record, and a duration before now."""
    assert over("topics", "create", "shared", "--partitions", 2, "--wait", 30).code == 0
    append(bootstrap, "shared", [b"x"] * 10)
    with closing(BlockingClient(bootstrap)) as client:
        for group, offset in (("ga", 4), ("gb", 6)):
            client.topic("shared").partition(0).cursor(group).commit(offset)
    one = over("groups", "reset", "ga", "shared", "--to", "current", "--export")
    assert one.out == "shared,0,4\nshared,1,0\n"
    both = ("--group", "ga", "--group", "gb")
    saved = over("groups", "reset", *both, "--all-topics", "--to", "current", "--export")
    assert saved.out == "ga,shared,0,4\ngb,shared,0,6\n"
    (tmp_path / "saved.csv").write_text(saved.out)
    (tmp_path / "one.csv").write_text("shared,0,99\n")

    def committed(group: str) -> Any:
        return next(each["committed"] for each in lines(over("groups", "describe", group, "--json")))

    moved = over("groups", "reset", *both, "shared-0", "--to", "PT1H")
    assert moved.out.splitlines() == ["ga  shared-0  4 -> 0", "gb  shared-0  6 -> 0"], moved.err
    assert (
        over("groups", "reset", "ga", "shared-0", "--to", "2100-01-01T00:00:00").out == "shared-0  0 -> 10\n"
    )
    assert over("groups", "reset", "ga", "--from-file", tmp_path / "one.csv").out == "shared-0  10 -> 10\n"
    assert over("groups", "reset", "--from-file", tmp_path / "saved.csv", "--plan").code == 0
    assert (committed("ga"), committed("gb")) == (10, 0)
    assert over("groups", "reset", "--from-file", tmp_path / "saved.csv").code == 0
    assert (committed("ga"), committed("gb")) == (4, 6)
    for words, complaint in (
        (("ga", "shared"), "give --to or --from-file"),
        (("ga", "--to", "latest"), "name topics or partitions"),
        (("--to", "latest"), "name a group"),
        (("ga", "shared", "--from-file", tmp_path / "one.csv"), "--from-file names the topics"),
        (("--group", "ga", "--all-groups", "shared", "--to", "latest"), "not both"),
    ):
        refused = over("groups", "reset", *words)
        assert (refused.code, complaint in refused.err) == (2, True), refused.err
    described = over("groups", "describe", "--all-groups", "--state", "empty", "--type", "classic").out
    assert "ga  Empty, 0 members" in described
    assert "gb  Empty, 0 members" in described
    listed = lines(over("groups", "list", "--state", "Empty", "--type", "classic", "--json"))
    assert {"ga", "gb"} <= {each["group"] for each in listed if each["type"] == "classic"}
    assert over("groups", "list", "--type", "consumer").out == ""
    assert "write one of Assigning" in over("groups", "list", "--state", "Idle").err
    assert over("groups", "describe").code == 2
    assert "no committed offset of shared-1" in over("groups", "delete-offsets", "ga", "shared-1").err
    assert over("groups", "delete-offsets", "ga", "shared").out == "shared-0  4 deleted\n"
    assert "shared" not in over("groups", "describe", "ga").out
    assert over("groups", "delete", "gb").code == 0


def test_who_reads_and_whose_offsets_stay(over: Command, bootstrap: str) -> None:
    assert over("topics", "create", "watched", "--partitions", 2, "--wait", 30).code == 0
    consumer = KafkaConsumer("watched", bootstrap_servers=bootstrap, group_id="watchers", client_id="ann")
    try:
        consumer.poll(timeout_ms=10_000)
        found = lines(over("groups", "describe", "watchers", "--json"))
        assert [(each["partition"], each["client"]) for each in found] == [(0, "ann"), (1, "ann")]
        refused = over("groups", "reset", "watchers", "watched", "--to", "earliest")
        assert (refused.code, "has 1 member (" in refused.err) == (1, True)
        assert "NON_EMPTY_GROUP" in over("groups", "delete", "watchers").err
        exported = over("groups", "reset", "watchers", "watched", "--to", "earliest", "--export")
        assert (exported.code, exported.out) == (0, "watched,0,0\nwatched,1,0\n"), "it changes nothing"
    finally:
        consumer.close()


def test_an_assignment_that_is_none() -> None:
    for bad in (
        b"\0\0",
        b"\0\0\0\0\0\1",
        b"\0\0\0\0\0\1\0\1a\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\0\1\xff\0\0\0\0",
    ):
        with pytest.raises(MalformedMessage):
            partitions_in(bad)
    good = b"\0\0" + b"\0\0\0\1" + b"\0\1a" + b"\0\0\0\2" + b"\0\0\0\0\0\0\0\7" + b"\xff\xff\xff\xff"
    assert partitions_in(good) == {TopicPartition("a", 0), TopicPartition("a", 7)}


def test_brokers_settings_offsets_and_sizes(over: Command, bootstrap: str, tmp_path: Path) -> None:
    assert over("topics", "create", "sized", "--replication-factor", 3, "--wait", 30).code == 0
    append(bootstrap, "sized", [b"x" * 100] * 5)
    found = lines(over("brokers", "list", "--json"))
    assert [each["broker"] for each in found] == [1, 2, 3]
    assert sum(each["is_controller"] for each in found) == 1
    assert "  controller" in over("brokers", "list").out
    (facts,) = lines(over("cluster", "describe", "--json"))
    assert [each["broker"] for each in facts["brokers"]] == [1, 2, 3]
    assert facts["controller"] in (1, 2, 3)
    assert facts["cluster_id"]
    assert facts["partitions"]["partitions"] >= 1
    # KRaft names any broker as the controller, another one each time.
    shown = over("cluster", "describe").out
    assert f"cluster     {facts['cluster_id']}\ncontroller  broker " in shown
    dirs = lines(over("brokers", "log-dirs", "--broker", 2, "--json"))
    assert [each["broker"] for each in dirs] == [2]
    assert dirs[0]["replicas"]["sized-0"] > 500
    some = lines(over("brokers", "log-dirs", "--broker", 2, "--topic", "sized", "--json"))
    assert some[0]["replicas"].keys() == {"sized-0"}
    moving = ("brokers", "move-log", "sized-0", "--broker", 2, "--to")
    (moved,) = lines(over(*moving, dirs[0]["log_dir"], "--json"))
    assert (moved["partition"], moved["error"]) == ("sized-0", "NONE")
    refused = over(*moving, "/nowhere", "--wait", 30)
    assert (refused.code, "LOG_DIR_NOT_FOUND (57)" in refused.err) == (1, True)
    (tmp_path / "settings").write_text("# as a file\nretention.ms=1\nsegment.ms = 9000\n")
    of_file = ("configs", "alter", "--topic", "sized", "--config-file", tmp_path / "settings")
    assert over(*of_file, "--config", "retention.ms=8000").code == 0
    told = over("configs", "describe", "--topic", "sized").out
    assert "retention.ms=8000  (topic)\n" in told
    assert "segment.ms=9000  (topic)\n" in told
    assert "set or deleted, not both" in over(*of_file, "--delete-config", "segment.ms").err
    dropping = ("configs", "alter", "--topic", "sized", "--delete-config")
    (altered,) = lines(over(*dropping, "segment.ms", "--json"))
    assert altered == {"topic": "sized", "set": {}, "deleted": ["segment.ms"]}
    assert over("configs", "alter", "--topic", "sized", "--config", "retention.ms=7000").code == 0
    (*_, own) = lines(over("configs", "describe", "--topic", "sized", "--json"))  # 4.1 has a default before
    assert own == {"name": "retention.ms", "value": "7000", "source": "topic", "is_read_only": False}
    assert over("configs", "alter", "--topic", "sized", "--delete-config", "retention.ms").code == 0
    assert "(topic)" not in over("configs", "describe", "--topic", "sized").out
    assert "retention.ms=" in over("configs", "describe", "--topic", "sized", "--all").out
    assert over("configs", "describe", "--broker", 1, "--all").code == 0
    assert over("configs", "describe", "--topic", "none").code == 1
    assert over("configs", "describe").code == 2
    assert over("configs", "alter", "--all-brokers", "--config", "log.retention.ms=7000").code == 0
    assert lines(over("configs", "describe", "--all-brokers", "--json"))[0] == (
        {"name": "log.retention.ms", "value": "7000", "source": "all brokers", "is_read_only": False}
    )
    assert "retention.ms=7000  (all brokers)" in over("configs", "describe", "--topic", "sized").out
    assert over("configs", "alter", "--all-brokers", "--delete-config", "log.retention.ms").code == 0
    assert "log.retention.ms" not in over("configs", "describe", "--all-brokers").out
    assert over("offsets", "sized").out == "sized-0  5\n"
    assert over("delete-records", "sized-0", 3).out == "sized-0  starts at 3\n"
    assert lines(over("offsets", "sized-0", "--at", "earliest", "--json"))[0]["offset"] == 3
    assert over("delete-records", "sized-0", "latest").out == "sized-0  starts at 5\n"
    assert over("offsets", "none").err == (
        "logstore: UNKNOWN_TOPIC_OR_PARTITION: no topic or partition none; `logstore topics list` shows all\n"
    )
    assert over("offsets", "sized", "--at", "soon").code == 2


def test_active_producers(over: Command, bootstrap: str) -> None:
    """An idempotent producer of three batches, as the leader and every other replica know it."""
    later = f"message.timestamp.after.max.ms={2**63 - 1}"
    made = ("topics", "create", "produced", "--partitions", 2, "--replication-factor", 3, "--config", later)
    assert over(*made, "--wait", 30).code == 0
    assert over("producers", "produced").out == "".join(
        f"produced-{each}  no active producers\n" for each in range(2)
    )
    # Records of the future: brokers forget a producer whose last one is older than a day.
    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all")
    try:
        for number in range(3):
            producer.send("produced", b"x", partition=0, timestamp_ms=2_000_000_000_000 + number).get(30)
        (found,) = lines(over("producers", "produced", "--json"))
        expected = {
            "topic": "produced",
            "partition": 0,
            "producer_epoch": 0,
            "last_sequence": 2,
            "last_timestamp_ms": 2_000_000_000_002,
            "transaction_start_offset": None,
        }
        assert expected.items() <= found.items()
        said = over("producers", "produced-0").out
        assert said == (
            f"produced-0  producer {found['producer_id']}  epoch 0  last sequence 2  "
            "last timestamp 2033-05-18 03:33:20,002 UTC\n"
        )

        def is_told_alike() -> bool:
            return all(over("producers", "produced-0", "--broker", each).out == said for each in (1, 2, 3))

        assert wait_until(30, is_told_alike)
    finally:
        producer.close()
    assert "no topic or partition unknown" in over("producers", "unknown").err
