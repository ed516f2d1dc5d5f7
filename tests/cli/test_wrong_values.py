"""Values that no broker or topic takes: the command names the mistake, and what was meant if it is known."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logstore.broker import Broker
from logstore.broker.errors import RequestRefused
from logstore.cli.brokers import check
from logstore.cli.cluster_plans import BadPlan, parse_plan, proposal
from logstore.cli.cluster_state import Cluster, Topic
from logstore.disk.errors import ErrorCode
from logstore.replication.metastore.layout import BrokerRegistration, TopicAssignment
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as broker:
        broker.create_topic("orders")
        yield broker.bootstrap


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["offsets", "orders", "--at", 1 << 63], "write earliest, latest or epoch milliseconds"),
        (["offsets", "orders", "--at", "9" * 5000], "write earliest, latest or epoch milliseconds"),
        (["delete-records", "orders-0", "9" * 5000], "is not an offset"),
        (["offsets", "orders", "--at", "--1"], "write earliest, latest or epoch milliseconds"),
        (["delete-records", "orders-0", 1 << 63], "is not an offset"),
        (
            ["topics", "alter", "orders", "--config", "retention.ms=9", "--delete-config", "retention.ms"],
            "retention.ms: set or deleted, not both",
        ),
        (
            ["topics", "create", "t", "--replica-assignment", "1:2", "--partitions", 2],
            "omit --placement, --partitions and --replication-factor",
        ),
        (
            ["topics", "create", "t", "--placement", "round-robin", "--partitions", 2],
            "round-robin needs --partitions and --replication-factor",
        ),
        (
            ["brokers", "move-log", "orders-0", "--broker", 1, "--to", "data/b"],
            "give the path that logstore brokers log-dirs shows",
        ),
    ],
)
def test_what_no_request_can_say_is_bad_usage(
    command: Command, bootstrap: str, words: list[object], said: str
) -> None:
    ended = command(*words, "--bootstrap", bootstrap)
    assert (ended.code, said in ended.err) == (2, True), ended


@pytest.mark.parametrize("verb", ["create", "describe"])
def test_a_name_that_is_no_text(command: Command, bootstrap: str, verb: str) -> None:
    """It was no broker that answered, and a topic that might have been made."""
    ended = command("topics", verb, os.fsdecode(b"\xff"), "--bootstrap", bootstrap)
    assert (ended.code, ended.out) == (1, "")
    assert "cannot be encoded: 'utf-8' codec can't encode character" in ended.err
    assert ended.err.rstrip().endswith("surrogates not allowed")


def test_the_log_dirs_of_a_topic_that_does_not_exist(command: Command, bootstrap: str) -> None:
    ended = command("brokers", "log-dirs", "--topic", "order", "--bootstrap", bootstrap)
    assert (ended.code, ended.out) == (1, "")
    assert "no topic order; did you mean 'orders'?" in ended.err


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("nope=1", "unknown settings: nope; see"),
        ("retention.ms=1", "unknown settings: retention.ms (did you mean log.retention.ms?)"),
        ("num.partitions=2", "num.partitions cannot be changed while brokers run"),
        ("node.id=2", "node.id cannot be changed while brokers run"),
        ("num.network.threads=2", "num.network.threads has no effect here: it cannot be changed"),
    ],
)
def test_settings_that_a_running_broker_does_not_change(
    command: Command, bootstrap: str, setting: str, said: str
) -> None:
    ended = command("configs", "alter", "--all-brokers", "--config", setting, "--bootstrap", bootstrap)
    assert (ended.code, said in ended.err) == (1, True), ended


def test_the_code_of_a_refusal_is_told_once(command: Command, bootstrap: str) -> None:
    refused = command(
        "quotas", "set", "--ip", "no", "--connection-creation-rate", 1, "--bootstrap", bootstrap
    )
    assert refused.code == 1
    assert refused.err.count("INVALID_REQUEST") == 1


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ],
)
def test_a_refusal_without_words_is_explained(error: ErrorCode) -> None:
    with pytest.raises(RequestRefused) as refused:
        check(error, "topic o2")
    explanation = str(refused.value).removeprefix(f"{error.name}: topic o2: ")
    assert explanation.startswith(
        ("the user lacks a permission on the ", "the brokers make no tokens", "the topic is internal")
    )


def test_a_setting_that_a_topic_does_not_have_is_not_dropped_silently(
    command: Command, bootstrap: str
) -> None:
    """As `topics alter` does, and Kafka's tool: a name with a typo would stay in force."""
    over = ("--bootstrap", bootstrap)
    ended = command("configs", "alter", "--topic", "orders", "--delete-config", "retention.mx", *over)
    assert (ended.code, ended.err) == (1, "logstore: orders has no setting retention.mx of its own\n")


def test_a_topic_that_exists_is_shown_to_who_asks_for_json(command: Command, bootstrap: str) -> None:
    over = ("--bootstrap", bootstrap, "--if-not-exists", "--json")
    made = command("topics", "create", "once", *over)
    again = command("topics", "create", "once", *over)
    assert (again.code, again.out) == (0, made.out)


def test_a_broker_is_named_as_one(command: Command, bootstrap: str) -> None:
    refused = command("configs", "alter", "--broker", 1, "--config", "nope=1", "--bootstrap", bootstrap)
    assert "INVALID_CONFIG: settings of broker 1: unknown settings: nope" in refused.err


def test_a_partition_of_a_file_that_does_not_exist(command: Command, bootstrap: str, tmp_path: Path) -> None:
    """It is not one without a leader, for which waiting would help."""
    offsets = tmp_path / "offsets.csv"
    offsets.write_text("orders,7,1\n")
    reset = command("groups", "reset", "billing", "--from-file", offsets, "--bootstrap", bootstrap)
    assert (reset.code, "UNKNOWN_TOPIC_OR_PARTITION: no partition orders-7" in reset.err) == (1, True), reset


def test_a_plan_for_too_few_brokers_and_one_that_moves_nothing(
    command: Command, bootstrap: str, tmp_path: Path
) -> None:
    over = ("--bootstrap", bootstrap)
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}]}')
    still = command("reassign", "execute", plan, "--throttle", 9, *over)
    assert (still.code, still.err) == (0, "logstore: nothing to throttle: no replica moves\n")
    cluster = Cluster(
        {each: BrokerRegistration("host", 9092) for each in (1, 2)},
        {"orders": Topic(TopicAssignment("id", {0: (1, 2)}), {}, -1, -1)},
        {},
        1,
    )
    with pytest.raises(BadPlan, match="orders has 2 replicas: list at least as many brokers, not 1"):
        proposal(cluster, ["orders"], [1], with_racks=False, start=0, shift=0)


def test_throttles_of_a_topic_that_is_gone(command: Command, bootstrap: str, tmp_path: Path) -> None:
    over = ("--bootstrap", bootstrap)
    rate = "leader.replication.throttled.rate=9"
    assert command("configs", "alter", "--broker", 1, "--config", rate, *over).code == 0
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": [{"topic": "gone", "partition": 0, "replicas": [1]}]}')
    verified = command("reassign", "verify", plan, *over)
    assert verified.out.splitlines()[-1] == "throttles removed: brokers 1; topics none"


@pytest.mark.parametrize(
    "words",
    [
        "topics list",
        "elect-preferred",
        "reassign list",
        "brokers drain 1",
        "users list",
        "why cluster",
        "cluster start new",
    ],
)
def test_a_store_that_is_none_is_wrong_usage(
    words: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = command(*words.split(), "--metadata", "foo://x")
    assert (refused.code, refused.out, "foo://x" in refused.err) == (2, "", True), refused
    assert not (tmp_path / "new" / "cluster.json").exists()


def test_a_name_that_a_plan_has_twice() -> None:
    """The first value was lost: `replicas` of one move replaced those of another in the same braces."""
    text = '{"partitions":[{"topic":"a","partition":0,"replicas":[1],"partition":1,"replicas":[2]}]}'
    with pytest.raises(BadPlan, match="the file is not JSON: 'partition' is there twice"):
        parse_plan(text)
