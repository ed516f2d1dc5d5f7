"""Stories of the cluster: versions, producers, quotas, users, rules, and requests that nobody knows."""

from __future__ import annotations

import struct
from typing import Any, Final

from logstore.broker.wire import types as t
from tests.wire_judge.records import creation, init_producer, produce, topics
from tests.wire_judge.stories import Draw, Known, Step

_SCRAM_256, _SCRAM_512, _NO_SCRAM = 1, 2, 5
_ENTITIES: Final = ("user", "client-id", "ip", "group")
_QUOTAS: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "no_such_quota")


def versions(draw: Draw) -> Step:
    """Ask for the versions. Which they are, and KRaft's features, is not compared."""
    request = t.ApiVersionsRequest(
        client_software_name=draw.usual("judge", "", "a b", "-", of=0.5),
        client_software_version=draw.usual("1.0", "", "1 0"),
    )

    def trim(response: Any) -> None:
        response.api_keys = response.supported_features = response.finalized_features = []
        response.finalized_features_epoch = -1

    return draw.step(t.ApiVersionsRequest, lambda _: request, trim=trim)


def nonsense(draw: Draw) -> Step:
    """Send a request with a key or version that nobody serves."""
    key, version = draw.pick((999, 0), (-1, 0), (3, 99), (0, 99), (18, 99), (1, -1), (10, 99), (11, 50))
    body = b"\0" if key == t.ApiVersionsRequest.KEY else draw.usual(b"", b"\0", b"\xff" * 8, of=0.4)
    head = struct.pack(">hhih", key, version, 7, -1) + body
    return Step(version, lambda _: t.ApiVersionsRequest(), raw=head)


def describe_producers(draw: Draw) -> Step:
    name = draw.usual(*topics(draw), draw.name("nowhere"), "")
    topic = t.DescribeProducersRequestTopicRequest(name=name, partition_indexes=[draw.usual(0, 1, 9)])
    return draw.step(t.DescribeProducersRequest, lambda _: t.DescribeProducersRequest(topics=[topic]))


def describe_transactions(draw: Draw) -> Step:
    ids = draw.pick([draw.name("tx")], [""], [])
    request = t.DescribeTransactionsRequest(transactional_ids=ids)
    return draw.step(t.DescribeTransactionsRequest, lambda _: request)


def list_transactions(draw: Draw) -> Step:
    request = t.ListTransactionsRequest(
        state_filters=draw.pick([], ["Ongoing"], ["Wrong", "Ongoing"], ["ongoing"])
    )
    mine = draw.name("tx")

    def trim(response: Any) -> None:
        states = response.transaction_states
        response.transaction_states = [each for each in states if each.transactional_id == mine]

    return draw.step(t.ListTransactionsRequest, lambda _: request, trim=trim)


def init(draw: Draw) -> Step:
    """Ask for a producer id, with an id and epoch of before or with parts of them."""
    producer_id, epoch = draw.pick((-1, -1), (-1, 0), (5, -1), (None, 0))

    def build(known: Known) -> t.InitProducerIdRequest:
        is_known = producer_id is None and "producer" in known
        return t.InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=60_000,
            producer_id=known["producer"] if is_known else -1 if producer_id is None else producer_id,
            producer_epoch=-1 if producer_id is None and not is_known else epoch,
        )

    return draw.step(t.InitProducerIdRequest, build)


def _entity(draw: Draw) -> list[tuple[str, str | None]]:
    kinds = draw.usual(["user"], ["client-id"], ["user", "client-id"], ["ip"], ["group"], [], of=0.4)
    return [(each, draw.usual(draw.name(each), None, "", of=0.8)) for each in kinds]


def alter_quotas(draw: Draw) -> Step:
    entries = [
        t.AlterClientQuotasRequestEntryData(
            entity=[
                t.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name or draw.name(kind))
                for kind, name in _entity(draw)
            ],
            ops=[_quota(draw) for _ in range(draw.usual(1, 2, 0))],
        )
        for _ in range(draw.usual(1, 2))
    ]
    entries = list({repr(each.entity): each for each in entries}.values())  # each entity once
    request = t.AlterClientQuotasRequest(entries=entries, validate_only=draw.chance(0.2))
    return draw.step(t.AlterClientQuotasRequest, lambda _: request)


def _quota(draw: Draw) -> t.AlterClientQuotasRequestOpData:
    key = draw.usual(*_QUOTAS, "connection_creation_rate", "")
    value = draw.usual(1_000_000.0, 0.5, -1.0, 0.0, 12.25)
    return t.AlterClientQuotasRequestOpData(key=key, value=value, remove=draw.chance(0.25))


def describe_quotas(draw: Draw) -> Step:
    kinds = draw.usual(["user"], ["client-id"], ["user", "client-id"], ["ip"], ["group"], of=0.5)
    components = [
        t.DescribeClientQuotasRequestComponentData(
            entity_type=kind,
            match_type=(how := draw.usual(0, 1, 2, 3, of=0.6)),
            match=draw.name(kind) if how == 0 or draw.chance(0.1) else None,
        )
        for kind in kinds
    ]
    components *= draw.usual(1, 2, 0, of=0.95)
    request = t.DescribeClientQuotasRequest(components=components, strict=draw.chance(0.5))
    mine = {draw.name(kind) for kind in _ENTITIES}

    def trim(response: Any) -> None:
        response.entries = response.entries and [
            each for each in response.entries if any(one.entity_name in mine for one in each.entity)
        ]

    return draw.step(t.DescribeClientQuotasRequest, lambda _: request, trim=trim)


def alter_users(draw: Draw) -> Step:
    name, mechanism = draw.usual(draw.name("user"), ""), draw.usual(_SCRAM_256, _SCRAM_512, 0, _NO_SCRAM)
    request = t.AlterUserScramCredentialsRequest()
    if draw.chance(0.7):
        request.upsertions = [
            t.AlterUserScramCredentialsRequestScramCredentialUpsertion(
                name=name,
                mechanism=mechanism,
                iterations=draw.usual(4_096, 4_095, 16_385, 0),
                salt=draw.usual(b"salt", b"", of=0.9),
                salted_password=draw.usual(b"p" * 32, b"", of=0.9),
            )
        ]
    if draw.chance(0.4):
        request.deletions = [
            t.AlterUserScramCredentialsRequestScramCredentialDeletion(name=name, mechanism=mechanism)
        ]
    return draw.step(t.AlterUserScramCredentialsRequest, lambda _: request)


def describe_users(draw: Draw) -> Step:
    names = draw.pick([draw.name("user")], [draw.name("user"), "nobody"], [draw.name("user")] * 2, [""])
    request = t.DescribeUserScramCredentialsRequest(
        users=[t.DescribeUserScramCredentialsRequestUserName(name=each) for each in names]
    )
    return draw.step(t.DescribeUserScramCredentialsRequest, lambda _: request)


def rules(draw: Draw) -> Step:
    """Ask for rules, or change them, where no authorizer is."""
    about = {"pattern_type_filter": 3, "operation": 1, "permission_type": 1, "resource_type_filter": 1}
    if draw.chance(0.5):
        found = t.DescribeAclsRequest(
            resource_name_filter=None, principal_filter=None, host_filter=None, **about
        )
        return draw.step(t.DescribeAclsRequest, lambda _: found)
    if draw.chance(0.5):
        every = t.DeleteAclsRequestDeleteAclsFilter(
            resource_name_filter=None, principal_filter=None, host_filter=None, **about
        )
        return draw.step(t.DeleteAclsRequest, lambda _: t.DeleteAclsRequest(filters=[every]))
    rule = t.CreateAclsRequestAclCreation(
        resource_type=2, resource_name="x", principal="User:a", host="*", operation=3, permission_type=3
    )
    return draw.step(t.CreateAclsRequest, lambda _: t.CreateAclsRequest(creations=[rule]))


def tokens(draw: Draw) -> Step:
    """Ask for delegation tokens, which need a login."""
    made: Any = draw.pick(
        t.CreateDelegationTokenRequest(
            owner_principal_type=None, owner_principal_name=None, max_lifetime_ms=-1
        ),
        t.RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=1),
        t.ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=1),
        t.DescribeDelegationTokenRequest(owners=None),
    )
    return draw.step(type(made), lambda _: made)


def cluster(draw: Draw) -> Step:
    request = t.DescribeClusterRequest(
        include_cluster_authorized_operations=draw.chance(0.4), endpoint_type=draw.usual(1, 2, 9)
    )
    return draw.step(t.DescribeClusterRequest, lambda _: request)


def sasl(draw: Draw) -> Step:
    request = t.SaslHandshakeRequest(mechanism=draw.pick("PLAIN", "SCRAM-SHA-256", ""))
    return draw.step(t.SaslHandshakeRequest, lambda _: request, client="b")


def markers(draw: Draw) -> Step:
    """Write the end of a transaction that nobody has begun."""
    topic = t.WriteTxnMarkersRequestWritableTxnMarkerTopic(
        name=draw.usual(*topics(draw), draw.name("nowhere")), partition_indexes=[draw.usual(0, 9)]
    )
    marker = t.WriteTxnMarkersRequestWritableTxnMarker(
        producer_id=draw.pick(4_000, 5_000),
        producer_epoch=draw.usual(0, 1),
        transaction_result=draw.chance(0.5),
        topics=[topic],
        coordinator_epoch=draw.usual(0, 1, -1),
    )
    return draw.step(t.WriteTxnMarkersRequest, lambda _: t.WriteTxnMarkersRequest(markers=[marker]))


STEPS: Final = (
    *(versions, nonsense, describe_producers, describe_producers, describe_transactions, list_transactions),
    *(init, alter_quotas, alter_quotas, describe_quotas, describe_quotas, alter_users, alter_users),
    *(describe_users, describe_users, rules, tokens, cluster, sasl, markers, markers, produce, produce),
)


def story(draw: Draw) -> list[Step]:
    """Draw a story of the cluster."""
    steps = [creation(draw), init_producer(draw)]
    return steps + [draw.pick(*STEPS)(draw) for _ in range(draw.number(2, 9))]
