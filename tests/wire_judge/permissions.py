"""Stories of rules: root makes and removes some, and two users ask what the other areas ask.

Rules are of the story's names, of `*` or of the cluster. Each story begins without any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from logstore.broker.wire import types as t
from tests.wire_judge import cluster, groups, records, topics, transactions
from tests.wire_judge.stories import Draw, Known, Step

_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID, _TOKEN, _USER = range(2, 8)
_ANY, _MATCH, _LITERAL, _PREFIXED = 1, 2, 3, 4
_DENY, _ALLOW = 2, 3
_ALL: Final = 2
_OF_TOPICS: Final = (3, 4, 5, 6, 7, 8, 10, 11)
_OF_RESOURCE: Final = {
    _TOPIC: _OF_TOPICS,
    _GROUP: (3, 6, 8),
    _CLUSTER: (5, 7, 8, 9, 10, 11, 12),
    _TRANSACTIONAL_ID: (4, 8),
    _TOKEN: (8,),
    _USER: (13, 14),
}
_PRINCIPALS: Final = ("User:ann", "User:bob", "User:*")
_HOSTS: Final = ("*", "127.0.0.1", "10.0.0.1")
_CLIENTS: Final = {"a": "ann", "b": "bob"}

Filter = TypeVar("Filter", t.DescribeAclsRequest, t.DeleteAclsRequestDeleteAclsFilter)


def _name(draw: Draw, kind: int) -> str:
    if kind == _CLUSTER:
        return draw.usual("kafka-cluster", "other", of=0.95)
    if kind in (_USER, _TOKEN):
        return draw.pick("User:ann", "User:bob", "*", draw.name("token"))
    if kind == _TRANSACTIONAL_ID:
        return draw.usual(draw.name("tx"), draw.name(""), "*")
    if kind == _GROUP:
        return draw.usual(draw.name("group"), draw.name("other"), draw.name(""), "*")
    return draw.usual(draw.name("a"), draw.name("b"), draw.name("nowhere"), draw.name(""), "*", of=0.4)


def _rule(draw: Draw) -> t.CreateAclsRequestAclCreation:
    kind = draw.usual(_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID, of=0.5)
    name, operations = _name(draw, kind), _OF_RESOURCE[kind]
    is_prefix = name == draw.name("")
    return t.CreateAclsRequestAclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=_PREFIXED if is_prefix else draw.usual(_LITERAL, _PREFIXED, of=0.9),
        principal=draw.usual(*_PRINCIPALS, of=0.4),
        host=draw.usual(*_HOSTS, of=0.85),
        operation=draw.usual(draw.pick(*operations), _ALL, of=0.7),
        permission_type=draw.usual(_ALLOW, _DENY),
    )


def grant(draw: Draw) -> Step:
    """Make rules, as root; mostly such as can be."""
    rules = [_rule(draw) for _ in range(draw.number(1, 4))]
    return draw.step(t.CreateAclsRequest, lambda _: t.CreateAclsRequest(creations=rules), client="root")


def welcome(draw: Draw) -> Step:
    """Let the users do nearly all that is about the story's names."""
    rules = [
        t.CreateAclsRequestAclCreation(
            resource_type=kind,
            resource_name="kafka-cluster" if kind == _CLUSTER else draw.name(""),
            resource_pattern_type=_LITERAL if kind == _CLUSTER else _PREFIXED,
            principal="User:*",
            host="*",
            operation=_ALL,
            permission_type=_ALLOW,
        )
        for kind in (_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID)
        if draw.chance(0.8)
    ]
    return draw.step(t.CreateAclsRequest, lambda _: t.CreateAclsRequest(creations=rules), client="root")


def odd_rules(draw: Draw) -> Step:
    """Make rules that cannot be, or that mean nothing."""
    rules = [_rule(draw) for _ in range(2)]
    wrong = rules[0]
    how = draw.pick("principal", "host", "operation", "permission", "type", "pattern", "name", "foreign")
    if how == "principal":
        wrong.principal = draw.pick("", "ann", "User:", ":ann", "Group:ann", "User:a:b", "user:ann")
    elif how == "host":
        wrong.host = draw.pick("", "10.0.0.0/8", "localhost", "::1")
    elif how == "operation":
        wrong.operation = draw.pick(0, 1, 99, -1)
    elif how == "permission":
        wrong.permission_type = draw.pick(0, 1, 99)
    elif how == "type":
        wrong.resource_type = draw.pick(0, 1, 99, _USER, _TOKEN)
    elif how == "pattern":
        wrong.resource_pattern_type = draw.pick(0, _ANY, _MATCH, 99)
    elif how == "name":
        wrong.resource_name = draw.pick("", " ", "a/b", "x" * 300)
    else:
        wrong.operation = draw.pick(5, 9, 12, 13, 14)
    return draw.step(t.CreateAclsRequest, lambda _: t.CreateAclsRequest(creations=rules), client="root")


def _filter(draw: Draw, kind: type[Filter]) -> Filter:
    resource = draw.usual(1, _TOPIC, _GROUP, _CLUSTER, of=0.4)
    names = (None, _name(draw, draw.pick(_TOPIC, _GROUP)))
    return kind(
        resource_type_filter=draw.usual(resource, 0, 99, of=0.97),
        resource_name_filter=draw.pick(*names),
        pattern_type_filter=draw.usual(draw.pick(_ANY, _MATCH, _LITERAL, _PREFIXED), 0, 99, of=0.97),
        principal_filter=draw.usual(None, *_PRINCIPALS, "", of=0.7),
        host_filter=draw.usual(None, *_HOSTS),
        operation=draw.usual(1, 2, 3, 8, 0, of=0.7),
        permission_type=draw.usual(1, _DENY, _ALLOW, 0, of=0.7),
    )


def describe_rules(draw: Draw) -> Step:
    request = _filter(draw, t.DescribeAclsRequest)
    return draw.step(t.DescribeAclsRequest, lambda _: request, client=draw.usual("root", "ann"))


def revoke(draw: Draw) -> Step:
    filters = [_filter(draw, t.DeleteAclsRequestDeleteAclsFilter) for _ in range(draw.usual(1, 2))]
    request = t.DeleteAclsRequest(filters=filters)
    return draw.step(t.DeleteAclsRequest, lambda _: request, client=draw.usual("root", "bob"))


def revoke_all(draw: Draw) -> Step:
    """Remove the rules of earlier stories."""
    every = t.DeleteAclsRequestDeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )

    def trim(response: Any) -> None:
        response.filter_results = []

    return draw.step(t.DeleteAclsRequest, lambda _: t.DeleteAclsRequest(filters=[every]), trim=trim)


def _transactional(draw: Draw) -> Step:
    return draw.pick(transactions.produce, transactions.fetch)(draw, transactions.Tally())


_ASKED: Final[tuple[Callable[[Draw], Step], ...]] = (
    *(*records.STEPS, *groups.STEPS, *topics.STEPS, _transactional, _transactional),
    *(each for each in cluster.STEPS if each not in (cluster.tokens, cluster.rules, cluster.sasl)),
)


def asked(draw: Draw) -> Step:
    """Ask as a user what another area asks."""
    step = draw.pick(*_ASKED)(draw)
    user = draw.usual(_CLIENTS[step.client], "root", of=0.95)
    if step.raw is not None:
        return replace(step, client="root")

    def build(known: Known) -> Any:
        request = step.build(known)
        if isinstance(request, t.FetchRequest):
            request.session_id, request.session_epoch = 0, -1  # with an authorizer, ours has no sessions
        return request

    return replace(step, build=build, client=user)


def story(draw: Draw) -> list[Step]:
    """Draw a story of rules."""
    steps = [revoke_all(draw), replace(records.creation(draw), client="root")]
    steps += [welcome(draw)] if draw.chance(0.5) else []
    steps += [grant(draw) for _ in range(draw.number(0, 2))]
    for _ in range(draw.number(3, 14)):
        kind = draw.usual(asked, grant, describe_rules, revoke, odd_rules, of=0.75)
        steps.append(kind(draw))
    return steps
