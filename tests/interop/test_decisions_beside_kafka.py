"""Random rules, quotas and placements: the decisions are those of Apache Kafka's classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from logstore.broker.security.acls import Acl, Operation, Pattern, Permission, Resource, Rules
from logstore.broker.security.quotas import CLIENT, USER, Entity, Kind, Quotas
from logstore.disk.errors import EngineError
from logstore.replication.controller.assignment import placed
from tests.judge.java_process import JavaProcess, while_tested

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

RELEASE: Final = "3.9.1"
SEEDS: Final = range(1, 201)
_NO_QUOTA: Final = float(2**63 - 1)
_DEFAULT: Final = "<default>"
_NAMES: Final = ("a", "ab", "abc", "b", "*", "a.b", "c", "abcd")
_PRINCIPALS: Final = ("User:ann", "User:bob", "User:a:b", "Group:ann")
_HOSTS: Final = ("10.0.0.1", "127.0.0.1", "0:0:0:0:0:0:0:1")
_USERS: Final = ("ann", "b c", "*", "zed")
_CLIENTS: Final = ("c1", "c 2", "é", "other")


@pytest.fixture(scope="module")
def kafka() -> Iterator[JavaProcess]:
    yield from while_tested(Path(__file__).parent / "java" / "Decisions.java", release=RELEASE)


def _resource(random: Random) -> tuple[Resource, str]:
    kind = random.choice([Resource.TOPIC, Resource.TOPIC, *Resource])
    return kind, "kafka-cluster" if kind is Resource.CLUSTER else random.choice(_NAMES)


def _rule(random: Random) -> Acl:
    kind, name = _resource(random)
    is_prefix = kind is not Resource.CLUSTER and random.random() < 0.3
    return Acl(
        kind,
        Pattern.PREFIXED if is_prefix else Pattern.LITERAL,
        name,
        random.choice((*_PRINCIPALS, "User:*")),
        random.choice(("*", "*", *_HOSTS)),
        random.choice(list(Operation)),
        random.choice([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_who_may_do_what(kafka: JavaProcess, seed: int) -> None:
    random = Random(seed)
    rules = [_rule(random) for _ in range(random.choice([0, 1, 2, 4, 8, 12]))]
    super_users = random.choice([[], [], ["User:bob"], ["User:*"]])
    allow_if_none = random.random() < 0.3
    questions: list[tuple[str, str, Operation, Resource, str | None]] = []
    for _ in range(50):
        kind, name = _resource(random)
        operation = random.choice([each for each in Operation if each is not Operation.ALL])
        asked = (random.choice(_PRINCIPALS), random.choice(_HOSTS), operation, kind)
        questions.append((*asked, name if random.random() < 0.7 else None))
    ours = Rules(rules, super_users=super_users, allow_if_none=allow_if_none)
    expected = kafka.ask(
        {
            "about": "rules",
            "rules": rules,
            "super_users": super_users,
            "allow_if_none": allow_if_none,
            "questions": questions,
        }
    )
    assert expected["answers"] == [
        ours.allows_any(principal, host, operation, kind)
        if name is None
        else ours.allows(principal, host, operation, kind, name)
        for principal, host, operation, kind, name in questions
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_whose_quota_counts(kafka: JavaProcess, seed: int) -> None:
    """A client without an id is not asked about: quotas of client ids do not limit it in Kafka."""
    random = Random(seed)
    values: dict[Entity, dict[Kind, float]] = {}
    listed: list[tuple[str | None, str | None, float]] = []
    for number in range(random.choice([0, 1, 2, 4, 8])):
        user, client = (
            random.choice((None, _DEFAULT, *_USERS[:3])),
            random.choice((None, _DEFAULT, *_CLIENTS[:3])),
        )
        named = ((USER, user), (CLIENT, client))
        entity = tuple((kind, None if name == _DEFAULT else name) for kind, name in named if name)
        if entity and entity not in values:
            values[entity] = {Kind.PRODUCE: float(number + 1)}
            listed.append((user, client, float(number + 1)))
    questions = [(random.choice(_USERS), random.choice(_CLIENTS)) for _ in range(20)]
    found = [Quotas(values).bound(Kind.PRODUCE, user, client) for user, client in questions]
    expected = kafka.ask({"about": "quotas", "quotas": listed, "questions": questions})
    assert expected["answers"] == [each[0] if each else _NO_QUOTA for each in found]


@pytest.mark.parametrize("seed", SEEDS)
def test_where_replicas_go(kafka: JavaProcess, seed: int) -> None:
    random = Random(seed)
    questions: list[Any] = []
    for _ in range(20):
        ids = sorted(random.sample(range(20), random.randint(1, 7)))
        has_racks = random.random() < 0.5
        racks = {each: random.choice(["r1", "r2", "r3"]) if has_racks else None for each in ids}
        if random.random() < 0.1:
            racks[random.choice(ids)] = None
        questions.append(
            (
                list(racks.items()),
                random.choice([1, 2, 5, 13]),
                random.randint(1, 8),
                random.randrange(len(ids)),
            )
        )
    firsts = [random.choice([0, 1, 3, 7]) for _ in questions]
    found: list[list[list[int]] | None] = []
    for (listed, partitions, factor, start), first in zip(questions, firsts, strict=True):
        try:
            lists = placed(dict(listed), partitions, factor, start=start, shift=start, first_partition=first)
            found.append([list(each) for each in lists])
        except EngineError:
            found.append(None)
    asked = [(*each, first) for each, first in zip(questions, firsts, strict=True)]
    assert kafka.ask({"about": "places", "questions": asked})["answers"] == found
