"""`logstore quotas` against a broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from logstore.broker import Broker
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap


@pytest.fixture
def quotas(command: Command, bootstrap: str) -> Command:
    return lambda verb, *words: command("quotas", verb, *words, "--bootstrap", bootstrap)


def test_quotas_are_set_found_and_deleted(quotas: Command) -> None:
    assert quotas("list").out == ""
    made = quotas("set", "--user", "ann", "--producer-byte-rate", "1048576", "--request-percentage", "12.5")
    assert made.out == "user ann: producer_byte_rate 1048576 bytes/s, request_percentage 12.5 %\n"
    every = ("--default-user", "--client-id", "app")
    assert quotas("set", *every, "--consumer-byte-rate", "7").code == 0
    made = quotas("set", "--default-client-id", "--controller-mutation-rate", "5", "--json")
    told = {"entity": {"client-id": None}, "quotas": {"controller_mutation_rate": 5.0}}
    assert json.loads(made.out) == told
    lines = quotas("list").out.splitlines()
    assert lines == [
        "every client-id: controller_mutation_rate 5 partitions/s",
        "user ann: producer_byte_rate 1048576 bytes/s, request_percentage 12.5 %",
        "every user, client-id app: consumer_byte_rate 7 bytes/s",
    ]
    assert json.loads(quotas("list", "--default-client-id", "--json").out) == told
    gone = quotas("delete", "--user", "ann", "--quota", "request_percentage")
    assert gone.out == "user ann: request_percentage 12.5 % deleted\n"
    again = quotas("delete", "--user", "ann", "--quota", "request_percentage")
    assert (again.code, again.err.strip()) == (1, "logstore: user ann has no request_percentage")
    gone = quotas("delete", "--user", "ann", "--json")
    assert json.loads(gone.out) == {"entity": {"user": "ann"}, "deleted": {"producer_byte_rate": 1048576.0}}
    nothing = quotas("delete", "--user", "ann")
    assert (nothing.code, nothing.err.strip()) == (1, "logstore: user ann has no quotas")
    assert quotas("delete", *every).code == quotas("delete", "--default-client-id").code == 0
    assert quotas("list").out == ""


def test_rates_of_addresses(quotas: Command) -> None:
    made = quotas("set", "--ip", "10.0.0.1", "--connection-creation-rate", "5")
    assert made.out == "ip 10.0.0.1: connection_creation_rate 5 connections/s\n"
    assert quotas("set", "--default-ip", "--connection-creation-rate", "50").code == 0
    assert quotas("list", "--default-ip").out == "every ip: connection_creation_rate 50 connections/s\n"
    for spelling in ("2001:DB8:0::1", "2001:db8::1"):  # one address has one quota
        assert quotas("set", "--ip", spelling, "--connection-creation-rate", "7").code == 0
    found = quotas("list", "--ip", "2001:db8:0:0:0:0:0:1").out
    assert found == "ip 2001:db8::1: connection_creation_rate 7 connections/s\n"
    assert quotas("list").out.count("2001") == 1
    assert quotas("delete", "--ip", "2001:0db8::1").code == 0
    refused = quotas("set", "--ip", "10.0.0.1", "--request-percentage", "5")
    assert (refused.code, "not a quota of such an entity" in refused.err) == (1, True), refused
    assert quotas("delete", "--ip", "10.0.0.1").code == quotas("delete", "--default-ip").code == 0
    assert quotas("list").out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "--user", "ann"), "give a quota"),
        (("set", "--request-percentage", "1"), "whose quota"),
        (("delete",), "whose quota"),
        (("set", "--user", "a", "--default-user", "--request-percentage", "1"), "not both"),
        (("set", "--user", "ann", "--producer-byte-rate", "-1"), "--producer-byte-rate"),
    ],
    ids=str,
)
def test_bad_usage(quotas: Command, words: tuple[str, ...], said: str) -> None:
    ended = quotas(*words)
    assert (ended.code, said in ended.err) == (2, True)
    assert quotas("list").out == ""
