"""The permissions that each API's requests need, and the answers if they are missing.

A check looks at a request before its handler does. It returns the whole answer, or None: the handler then
gets the request without the entries that are refused, and these are added to its answer. A name that may not
be described is answered alike whether it exists or not. A topic is found as the handlers find it: the one
that is checked is the one that is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from logstore.broker.security import delegation
from logstore.broker.security.acls import CLUSTER_NAME, Operation, Resource
from logstore.broker.security.refused import error_of, refused_entry
from logstore.broker.translation import NO_ID, results_of_markers
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode
from logstore.disk.ids import id_to_text

if TYPE_CHECKING:
    from logstore.broker.dispatch import Call
    from logstore.replication.metadata_cache import MetadataCache

T = TypeVar("T")

O, R = Operation, Resource  # noqa: E741  # as they stand in the table
_CODES: Final = {
    R.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    R.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    R.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    R.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_TOPIC_CONFIG: Final = 2
_NOT_ASKED: Final = -(2**31)
_ALL_IN_ONE_LIST: Final = 8
_DELETE_BY_ID: Final = 6
_METADATA_BY_ID: Final = 12
_WITHOUT_NULL_TOPICS: Final = 0
_WITHOUT_GROUP_ERROR: Final = 1


@dataclass(slots=True, eq=False)
class Question:
    """A request that is checked: what it asks, and what its principal may do.

    `may` audits a denial; `has` is for rights whose lack denies nothing. `creates_topics` is
    `auto.create.topics.enable`.
    """

    call: Call
    body: Any
    metadata: MetadataCache
    has: Callable[[Operation, Resource, str], bool]
    may: Callable[[Operation, Resource, str], bool]
    may_any: Callable[[Operation, Resource], bool]
    creates_topics: bool
    _amendments: list[Callable[[Any], None]] = field(default_factory=list, init=False)

    def may_cluster(self, operation: Operation) -> bool:
        return self.may(operation, R.CLUSTER, CLUSTER_NAME)

    def has_cluster(self, operation: Operation) -> bool:
        return self.has(operation, R.CLUSTER, CLUSTER_NAME)

    def denial(self, operation: Operation, resource: Resource, name: str) -> ErrorCode | None:
        """Return the error of an entry that the principal may not use so; None if it may."""
        return None if self.may(operation, resource, name) else _CODES[resource]

    def bits(self, bits: int, resource: Resource, name: str) -> int:
        """Return which of these operations (bit n for operation n) the principal has."""
        return sum(1 << each for each in Operation if bits >> each & 1 and self.has(each, resource, name))

    def amend(self, change: Callable[[Any], None]) -> None:
        """Change the handler's answer before it is sent."""
        self._amendments.append(change)
        self.call.amend = self._amended

    def _amended(self, answer: Struct) -> None:
        for change in self._amendments:
            change(answer)

    def refused(self, resource: Resource, **fields: Any) -> Struct:
        """Return an answer that is refused as a whole."""
        kind = self.call.api.response
        if "error_code" in kind.FIELDS and self.call.version in kind.FIELDS["error_code"].versions:
            fields = {**error_of(kind, _CODES[resource]), **fields}
        return kind(**fields)

    def topic_of(self, entry: Any) -> str | None:
        """Return the topic that an entry names; None for an unknown id.

        The name in a tag of ours (Fetch) comes first, then the id, then the name.
        """
        if isinstance(entry, str):
            return entry
        topic_id: bytes = getattr(entry, "topic_id", NO_ID)
        name: str | None = getattr(entry, "topic_name", None)
        if not name and topic_id != NO_ID:
            return self.metadata.topic_names.get(id_to_text(topic_id))
        return name or getattr(entry, "name", None) or getattr(entry, "topic", None)


Check = Callable[[Question], "Struct | None"]


def _nothing(question: Question) -> None:
    """No permission is needed."""


def _cluster(operation: Operation, **fields: Any) -> Check:
    def check(question: Question) -> Struct | None:
        return None if question.may_cluster(operation) else question.refused(R.CLUSTER, **fields)

    return check


def _group(operation: Operation) -> Check:
    def check(question: Question) -> Struct | None:
        is_allowed = question.may(operation, R.GROUP, question.body.group_id)
        return None if is_allowed else question.refused(R.GROUP)

    return check


def _both(*checks: Check) -> Check:
    def check(question: Question) -> Struct | None:
        return next((found for each in checks if (found := each(question)) is not None), None)

    return check


def _entries(
    operation: Operation,
    resource: Resource = R.TOPIC,
    *,
    field: str = "topics",
    answer: str = "topics",
    or_cluster: Operation | None = None,
) -> Check:
    """Refuse single entries of a list. With `or_cluster`, that operation on the cluster is enough, too."""

    def check(question: Question) -> Struct | None:
        def code_of(entry: Any) -> ErrorCode | None:
            name = question.topic_of(entry) if resource is R.TOPIC else entry
            # An unknown id names nothing, and the handler says so.
            return None if name is None else question.denial(operation, resource, name)

        if or_cluster is not None and question.has_cluster(or_cluster):
            return None
        return _refuse(question, field, answer, code_of)

    return check


def _parted(entries: Iterable[T], is_allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Return the entries that are allowed, and the others. Comparing them would take the square of time."""
    kept: list[T] = []
    refused: list[T] = []
    for each in entries:
        (kept if is_allowed(each) else refused).append(each)
    return kept, refused


def _refuse(
    question: Question, field: str, answer: str, code_of: Callable[[Any], ErrorCode | None]
) -> Struct | None:
    """Take the entries with an error out of the request, and put them into the answer."""
    kept: list[Any] = []
    refused: list[Struct] = []
    kind = question.call.api.response
    for entry in getattr(question.body, field) or ():
        if (code := code_of(entry)) is None:
            kept.append(entry)
        else:
            refused.append(refused_entry(kind.FIELDS[answer].element, entry, code))
    if not refused:
        return None
    if not kept:
        return kind(**{answer: refused})
    setattr(question.body, field, kept)
    question.amend(lambda found: getattr(found, answer).extend(refused))
    return None


def _all_refused(question: Question, field: str, answer: str, resource: Resource) -> Struct:
    """Return an answer with the error in each of its entries."""
    return _refuse(question, field, answer, lambda _: _CODES[resource]) or question.call.api.response()


# --- single APIs ------------------------------------------------------------------------------


def _produce(question: Question) -> Struct | None:
    body, before = question.body, len(question.body.topic_data)
    if body.transactional_id is None or question.may(O.WRITE, R.TRANSACTIONAL_ID, body.transactional_id):
        answer = _entries(O.WRITE, field="topic_data", answer="responses")(question)
    else:
        answer = _all_refused(question, "topic_data", "responses", R.TRANSACTIONAL_ID)
    if body.acks == 0 and (answer is not None or len(body.topic_data) < before):
        question.call.refuse("produce with acks=0 to a topic that the principal may not write")
        return question.call.api.response()
    return answer


def _fetch(question: Question) -> Struct | None:
    body = question.body
    replica_id = body.replica_state.replica_id if body.replica_state is not None else body.replica_id
    if replica_id >= 0:
        if question.may_cluster(O.CLUSTER_ACTION):
            return None
        return _all_refused(question, "topics", "responses", R.TOPIC)  # as Kafka: old versions lack a place
    # A session would go on with topics that are not in the request, whose rules may change.
    body.session_id, body.session_epoch = 0, -1
    return _entries(O.READ, answer="responses")(question)


def _metadata(question: Question) -> Struct | None:
    body, call = question.body, question.call
    is_all = body.topics is None or (call.version == _WITHOUT_NULL_TOPICS and not body.topics)

    def hide(answer: t.MetadataResponse) -> None:
        shown = []
        for each in answer.topics:
            if not each.name or _sees(question, each.name):
                shown.append(each)
            elif not is_all:
                # The handler may answer later: an id that was unknown names a topic by then.
                shown.append(_hidden(call, t.MetadataRequestTopic(topic_id=each.topic_id)))
        answer.topics = shown
        _cluster_bits(question, answer)
        for each in shown if body.include_topic_authorized_operations else ():
            if each.name:
                each.topic_authorized_operations = question.bits(
                    each.topic_authorized_operations, R.TOPIC, each.name
                )

    question.amend(hide)
    if is_all:
        return None

    def is_allowed(entry: t.MetadataRequestTopic) -> bool:
        name = question.topic_of(entry)
        if name is None or not question.may(O.DESCRIBE, R.TOPIC, name):
            return name is None
        creates = question.creates_topics and (body.allow_auto_topic_creation or call.version < 4)
        return not creates or name in question.metadata.topic_ids or _may_create(question, name)

    body.topics, refused = _parted(body.topics, is_allowed)
    added = [_hidden(call, each) for each in refused]
    if not body.topics and call.version == _WITHOUT_NULL_TOPICS:
        body.topics = [t.MetadataRequestTopic(name="")]  # an empty list would mean all
        question.amend(lambda answer: answer.topics.clear())
    question.amend(lambda answer: answer.topics.extend(added))
    return None


def _hidden(call: Call, entry: t.MetadataRequestTopic) -> t.MetadataResponseTopic:
    """Return the answer about a topic that may not be described: its id or its name, as it was named."""
    name = entry.name
    if entry.topic_id != NO_ID:
        name = None if call.version >= _METADATA_BY_ID else ""
    return t.MetadataResponseTopic(error_code=_CODES[R.TOPIC], name=name, topic_id=entry.topic_id)


def _sees(question: Question, topic: str) -> bool:
    return question.has(O.DESCRIBE, R.TOPIC, topic)


def _may_create(question: Question, name: str) -> bool:
    return question.has_cluster(O.CREATE) or question.may(O.CREATE, R.TOPIC, name)


def _cluster_bits(question: Question, answer: Any) -> None:
    if answer.cluster_authorized_operations == _NOT_ASKED:
        return
    asked = answer.cluster_authorized_operations if question.has_cluster(O.DESCRIBE) else 0
    answer.cluster_authorized_operations = question.bits(asked, R.CLUSTER, CLUSTER_NAME)


def _describe_cluster(question: Question) -> None:
    question.amend(lambda answer: _cluster_bits(question, answer))


def _offset_commit(question: Question) -> Struct | None:
    if question.may(O.READ, R.GROUP, question.body.group_id):
        return _entries(O.READ)(question)
    return _all_refused(question, "topics", "topics", R.GROUP)


def _offset_fetch(question: Question) -> Struct | None:
    body = question.body
    if question.call.version < _ALL_IN_ONE_LIST:
        if not question.may(O.DESCRIBE, R.GROUP, body.group_id):
            if question.call.version == _WITHOUT_GROUP_ERROR:
                return _all_refused(question, "topics", "topics", R.GROUP)
            return question.refused(R.GROUP)
        _described_topics(question, body, t.OffsetFetchResponse, lambda answer: answer)
        return None
    answer = _refuse(
        question, "groups", "groups", lambda each: question.denial(O.DESCRIBE, R.GROUP, each.group_id)
    )
    kind = t.OffsetFetchResponse.FIELDS["groups"].element
    for group in body.groups if answer is None else ():
        _described_topics(question, group, kind, partial(_group_in, group.group_id))
    return answer


def _group_in(group_id: str, answer: t.OffsetFetchResponse) -> Any:
    return next(each for each in answer.groups if each.group_id == group_id)


def _described_topics(question: Question, wanted: Any, kind: Any, of: Callable[[Any], Any]) -> None:
    """Leave topics out of an OffsetFetch that may not be described; answer those that were named.

    `of` finds the answer to `wanted`, which is a `kind`, in the whole answer.
    """
    if wanted.topics is None:

        def leave_out(answer: Any) -> None:
            found = of(answer)
            found.topics = [each for each in found.topics if _sees(question, each.name)]

        question.amend(leave_out)
        return
    wanted.topics, refused = _parted(wanted.topics, lambda each: question.may(O.DESCRIBE, R.TOPIC, each.name))
    if refused:
        element = kind.FIELDS["topics"].element
        added = [refused_entry(element, each, _CODES[R.TOPIC]) for each in refused]
        question.amend(lambda answer: of(answer).topics.extend(added))


def _find_coordinator(question: Question) -> Struct | None:
    body = question.body
    resource = {0: R.GROUP, 1: R.TRANSACTIONAL_ID}.get(body.key_type)
    if resource is None:
        return None
    if question.call.version >= 4:
        return _entries(O.DESCRIBE, resource, field="coordinator_keys", answer="coordinators")(question)
    is_allowed = question.may(O.DESCRIBE, resource, body.key)
    return None if is_allowed else question.refused(resource, node_id=-1, port=-1)


def _describe_groups(question: Question) -> Struct | None:
    def bits(answer: t.DescribeGroupsResponse) -> None:
        for each in answer.groups:
            if each.authorized_operations != _NOT_ASKED:
                each.authorized_operations = question.bits(each.authorized_operations, R.GROUP, each.group_id)

    question.amend(bits)
    return _entries(O.DESCRIBE, R.GROUP, field="groups", answer="groups")(question)


def _list_groups(question: Question) -> None:
    if not question.has_cluster(O.DESCRIBE):

        def leave_out(answer: t.ListGroupsResponse) -> None:
            answer.groups = [
                each for each in answer.groups if question.has(O.DESCRIBE, R.GROUP, each.group_id)
            ]

        question.amend(leave_out)


def _delete_topics(question: Question) -> Struct | None:
    if question.call.version < _DELETE_BY_ID:
        return _entries(O.DELETE, field="topic_names", answer="responses")(question)

    def code_of(entry: t.DeleteTopicsRequestDeleteTopicState) -> ErrorCode | None:
        name = question.topic_of(entry)
        if name is None:
            # The controller may know it already, and asks for no permission.
            return ErrorCode.UNKNOWN_TOPIC_ID
        # A deletion by id needs Describe too, because the answer tells the name.
        needed = (O.DELETE,) if entry.name is not None else (O.DESCRIBE, O.DELETE)
        return next(filter(None, (question.denial(each, R.TOPIC, name) for each in needed)), None)

    return _refuse(question, "topics", "responses", code_of)


def _create_topics(question: Question) -> Struct | None:
    def hide_settings(answer: t.CreateTopicsResponse) -> None:
        for each in answer.topics:
            if not each.error_code and not question.has(O.DESCRIBE_CONFIGS, R.TOPIC, each.name):
                each.topic_config_error_code = _CODES[R.TOPIC]
                each.configs, each.num_partitions, each.replication_factor = [], -1, -1

    question.amend(hide_settings)
    return _entries(O.CREATE, or_cluster=O.CREATE)(question)


def _elect_leaders(question: Question) -> Struct | None:
    if question.may_cluster(O.ALTER):
        return None
    kind: Any = t.ElectLeadersResponse.FIELDS["replica_election_results"].element
    named = question.body.topic_partitions or ()
    results = [refused_entry(kind, each, _CODES[R.CLUSTER]) for each in named]
    return question.refused(R.CLUSTER, replica_election_results=results)


def _alter_log_dirs(question: Question) -> Struct | None:
    if question.may_cluster(O.ALTER):
        return None
    topic = t.AlterReplicaLogDirsResponseAlterReplicaLogDirTopicResult
    partition = t.AlterReplicaLogDirsResponseAlterReplicaLogDirPartitionResult
    code = _CODES[R.CLUSTER]
    return t.AlterReplicaLogDirsResponse(
        results=[
            topic(
                topic_name=each.name,
                partitions=[partition(partition_index=one, error_code=code) for one in each.partitions],
            )
            for log_dir in question.body.dirs
            for each in log_dir.topics
        ]
    )


def _init_producer_id(question: Question) -> Struct | None:
    body = question.body
    if body.transactional_id is not None:
        if question.may(O.WRITE, R.TRANSACTIONAL_ID, body.transactional_id):
            return None
        return question.refused(R.TRANSACTIONAL_ID, producer_id=-1, producer_epoch=-1)
    if question.may_any(O.WRITE, R.TOPIC) or question.may_cluster(O.IDEMPOTENT_WRITE):
        return None
    return question.refused(R.CLUSTER, producer_id=-1, producer_epoch=-1)


def _write_txn_markers(question: Question) -> Struct | None:
    if question.has_cluster(O.ALTER) or question.may_cluster(O.CLUSTER_ACTION):
        return None
    return results_of_markers(question.body, lambda *_: _CODES[R.CLUSTER])


def _configs(operation: Operation, answer: str) -> Check:
    def check(question: Question) -> Struct | None:
        def code_of(entry: Any) -> ErrorCode | None:
            if entry.resource_type == _TOPIC_CONFIG:
                return question.denial(operation, R.TOPIC, entry.resource_name)
            return question.denial(operation, R.CLUSTER, CLUSTER_NAME)

        return _refuse(question, "resources", answer, code_of)

    return check


def _every_result(operation: Operation, field: str, answer: str) -> Check:
    """Refuse a request whose answer has no error of its own: in each result."""

    def check(question: Question) -> Struct | None:
        if question.may_cluster(operation):
            return None
        kind = question.call.api.response
        result: Any = kind.FIELDS[answer].element
        refused = result(**error_of(result, _CODES[R.CLUSTER]))
        return kind(**{answer: [refused] * len(getattr(question.body, field))})

    return check


def _alter_users(question: Question) -> Struct | None:
    if question.may_cluster(O.ALTER):
        return None
    names = [each.name for each in [*question.body.deletions, *question.body.upsertions]]
    kind = t.AlterUserScramCredentialsResponseAlterUserScramCredentialsResult
    refused = [kind(user=name, **error_of(kind, _CODES[R.CLUSTER])) for name in dict.fromkeys(names)]
    return t.AlterUserScramCredentialsResponse(results=refused)


def _alter_quotas(question: Question) -> Struct | None:
    if question.may_cluster(O.ALTER_CONFIGS):
        return None
    kind, entity = t.AlterClientQuotasResponseEntryData, t.AlterClientQuotasResponseEntityData
    refused = [
        kind(
            **error_of(kind, _CODES[R.CLUSTER]),
            entity=[entity(entity_type=one.entity_type, entity_name=one.entity_name) for one in each.entity],
        )
        for each in question.body.entries
    ]
    return t.AlterClientQuotasResponse(entries=refused)


def _create_token(question: Question) -> Struct | None:
    principal = question.call.connection.principal
    owner = delegation.owner_in(question.body, principal)
    # A connection that may not ask at all hears that from the handler.
    if not delegation.may_ask(question.call.connection) or owner == principal:
        return None
    if question.may(O.CREATE_TOKENS, R.USER, owner):
        return None
    return delegation.not_created(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, owner, principal)


def _describe_tokens(question: Question) -> None:
    principal = question.call.connection.principal

    def leave_out(answer: t.DescribeDelegationTokenResponse) -> None:
        answer.tokens = [each for each in answer.tokens if _may_see_token(question, each, principal)]

    question.amend(leave_out)


def _may_see_token(question: Question, token: Any, principal: str) -> bool:
    requester = delegation.principal_text(
        token.token_requester_principal_type, token.token_requester_principal_name
    )
    owner, *others = (
        delegation.principal_text(each.principal_type, each.principal_name)
        for each in (token, *token.renewers)
    )
    return (
        principal in (owner, requester, *others)
        or question.has(O.DESCRIBE, R.DELEGATION_TOKEN, token.token_id)
        or question.has(O.DESCRIBE_TOKENS, R.USER, owner)
    )


PERMISSIONS: Final[Mapping[int, Check]] = {
    0: _produce,
    1: _fetch,
    2: _entries(O.DESCRIBE),
    3: _metadata,
    **dict.fromkeys((4, 5, 6, 7, 56), _cluster(O.CLUSTER_ACTION)),
    8: _offset_commit,
    9: _offset_fetch,
    10: _find_coordinator,
    **dict.fromkeys((11, 12, 13, 14, 68), _group(O.READ)),
    15: _describe_groups,
    16: _list_groups,
    **dict.fromkeys((17, 18, 36), _nothing),
    19: _create_topics,
    20: _delete_topics,
    21: _entries(O.DELETE),
    22: _init_producer_id,
    23: _entries(O.DESCRIBE, or_cluster=O.CLUSTER_ACTION),
    27: _write_txn_markers,
    29: _cluster(O.DESCRIBE),
    30: _every_result(O.ALTER, "creations", "results"),
    31: _every_result(O.ALTER, "filters", "filter_results"),
    32: _configs(O.DESCRIBE_CONFIGS, "results"),
    33: _configs(O.ALTER_CONFIGS, "responses"),
    34: _alter_log_dirs,
    35: _cluster(O.DESCRIBE),
    37: _entries(O.ALTER, answer="results"),
    38: _create_token,
    **dict.fromkeys((39, 40), _nothing),
    41: _describe_tokens,
    42: _entries(O.DELETE, R.GROUP, field="groups_names", answer="results"),
    43: _elect_leaders,
    44: _configs(O.ALTER_CONFIGS, "responses"),
    45: _cluster(O.ALTER),
    46: _cluster(O.DESCRIBE),
    47: _both(_group(O.DELETE), _entries(O.READ)),
    48: _cluster(O.DESCRIBE_CONFIGS, entries=None),
    49: _alter_quotas,
    50: _cluster(O.DESCRIBE),
    51: _alter_users,
    60: _describe_cluster,
    61: _entries(O.READ),
    65: _entries(O.DESCRIBE, R.TRANSACTIONAL_ID, field="transactional_ids", answer="transaction_states"),
    66: _nothing,
}
"""By API key: what a request needs. An API that is not here is not served to anyone but super users."""
