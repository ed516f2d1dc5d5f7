"""`logstore acls` against a broker that has an authorizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from logstore.broker import Broker, BrokerConfig
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker(BrokerConfig(settings=SETTINGS)) as broker:
        yield broker.bootstrap


@pytest.fixture
def acls(command: Command, bootstrap: str) -> Command:
    return lambda verb, *words: command("acls", verb, *words, "--bootstrap", bootstrap)


def test_rules_are_added_found_and_removed(acls: Command) -> None:
    assert acls("list").out == ""
    alice = ("--principal", "User:alice")
    added = acls("add", *alice, "--operation", "read", "--topic", "orders")
    assert added.out == "allow User:alice to read topic orders\n"
    assert acls("add", *alice, "--operation", "read", "--group", "bill", "--prefixed").code == 0
    everybody = ("--principal", "User:*", "--host", "10.0.0.1")
    denied = acls("add", *everybody, "--operation", "all", "--cluster", "--deny")
    assert denied.out == "deny User:* from 10.0.0.1 to all cluster kafka-cluster\n"
    assert len(acls("list").out.splitlines()) == 3
    assert acls("list", *alice, "--group", "bill").out == "allow User:alice to read group bill…\n"
    (found,) = [json.loads(line) for line in acls("list", "--topic", "orders", "--json").out.splitlines()]
    assert found == {
        "resource": "topic",
        "name": "orders",
        "pattern": "literal",
        "principal": "User:alice",
        "host": "*",
        "operation": "read",
        "permission": "allow",
    }
    gone = acls("remove", *alice)
    assert (gone.code, len(gone.out.splitlines())) == (0, 2)
    again = acls("remove", *alice)
    assert (again.code, again.err) == (1, "logstore: no rule matches\n")
    assert acls("remove", "--cluster").code == 0


def test_rules_of_users_and_delegation_tokens(acls: Command) -> None:
    """CreateTokens on `User:ann` lets others make tokens for ann (docs/security.md)."""
    app = ("--principal", "User:app")
    of_ann = ("--user-principal", "User:ann")
    added = acls("add", *app, "--operation", "create-tokens", *of_ann)
    assert added.out == "allow User:app to create-tokens user User:ann\n"
    assert acls("add", *app, "--operation", "describe", "--delegation-token", "t1").code == 0
    assert acls("list", *of_ann).out == added.out
    gone = acls("remove", "--delegation-token", "t1")
    assert gone.out == "allow User:app to describe delegation-token t1\n"
    assert acls("remove", *of_ann).code == 0


def test_rules_are_found_by_pattern_operation_and_host(acls: Command) -> None:
    """An IPv6 address is stored as Java writes it, which is what a broker compares."""
    eve = ("--principal", "User:eve")
    acls("add", *eve, "--operation", "read", "--topic", "a", "--host", "::1")
    acls("add", *eve, "--operation", "read", "--topic", "a", "--prefixed")
    acls("add", *eve, "--operation", "write", "--topic", "a")
    assert acls("list", *eve, "--prefixed").out == "allow User:eve to read topic a…\n"
    assert acls("list", *eve, "--operation", "write").out == "allow User:eve to write topic a\n"
    by_host = acls("list", *eve, "--host", "::1").out
    assert by_host == "allow User:eve from 0:0:0:0:0:0:0:1 to read topic a\n"
    assert acls("remove", "--topic", "a", "--prefixed").out == "allow User:eve to read topic a…\n"
    assert len(acls("remove", *eve).out.splitlines()) == 2


@pytest.mark.parametrize("host", ["127.0.0.0/8", "300.1.1.1", "localhost", "10.0.0.*", ""])
def test_a_host_that_never_matches_is_refused(acls: Command, host: str) -> None:
    """A denial with it would do nothing."""
    rule = ("--principal", "User:a", "--operation", "all", "--topic", "t", "--deny")
    ended = acls("add", *rule, "--host", host)
    assert ended.code == 2
    assert f"--host {host}: it is one IP address" in ended.err
    assert acls("list", "--topic", "t").out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "--topic", "t", "--operation", "read"], "a rule needs --principal"),
        (["add", "--principal", "User:a", "--topic", "t", "--operation", "look"], "it is one of all, read"),
        (
            ["add", "--principal", "a", "--topic", "t", "--operation", "read"],
            "did you mean User:a?",
        ),
        (
            ["add", "--principal", "user:a", "--topic", "t", "--operation", "read", "--deny"],
            "did you mean User:a?",
        ),
        (
            ["add", "--principal", "User:a", "--topic", "*", "--prefixed", "--operation", "all", "--deny"],
            "stands for every name only without --prefixed",
        ),
        (
            ["add", "--principal", "User:a", "--topic", "orders.*", "--operation", "all", "--deny"],
            "topic name 'orders.*' is not",
        ),
        (["add", "--principal", "User:a", "--topic", "", "--operation", "all"], "topic name '' is not"),
        (
            [
                "add",
                "--principal",
                "User:a",
                "--principal=User:b",
                "--topic",
                "t",
                "--operation",
                "all",
                "--deny",
            ],
            "--principal is given twice; give it once (see logstore acls add --help)",
        ),
        (["list", "--principal", "ann"], "write TYPE:NAME, such as User:ann"),
        (["remove", "--principal", "ann"], "write TYPE:NAME, such as User:ann"),
        (["list", "--topic", "t", "--topic", "u"], "--topic is given twice"),
        (["list", "--topic", "t", "--group", "g"], "give one of"),
        (
            ["add", "--principal", "User:a", "--group", "g", "--operation", "create"],
            "--operation create: of a group it is one of read, delete, describe",
        ),
        (["list", "--user-principal", "ann"], "write TYPE:NAME, such as User:ann"),
        (["remove", "--prefixed"], "name what to remove"),
        (["remove"], "name what to remove"),
    ],
)
def test_bad_usage(acls: Command, words: list[str], said: str) -> None:
    ended = acls(*words)
    assert ended.code == 2
    assert said in ended.err


def test_a_missing_value_names_the_verbs_help(command: Command) -> None:
    ended = command("acls", "remove", "--topic")
    assert (ended.code, "requires an argument. (see logstore acls remove --help)" in ended.err) == (2, True)


def test_what_the_broker_refuses_is_told(acls: Command, command: Command) -> None:
    refused = acls("add", "--principal", "User:alice", "--operation", "read", "--group", "a/b")
    assert refused.code == 1
    assert "the rule: " in refused.err
    with Broker() as plain:
        ended = command("acls", "list", "--bootstrap", plain.bootstrap)
        assert ended.code == 1
        assert "SECURITY_DISABLED" in ended.err
