"""Values that no broker or topic takes: the command names the mistake, and what was meant if it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from logstore.broker import Broker
from logstore.broker.errors import RequestRefused
from logstore.cli.brokers import check
from logstore.disk.errors import ErrorCode
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
    ],
)
def test_a_refusal_without_words_is_explained(error: ErrorCode) -> None:
    with pytest.raises(RequestRefused) as refused:
        check(error, "topic o2")
    explanation = str(refused.value).removeprefix(f"{error.name}: topic o2: ")
    assert explanation.startswith(("the user lacks a permission on the ", "the brokers make no tokens"))


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
