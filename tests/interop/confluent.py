"""confluent-kafka, which is librdkafka."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka as ck
import confluent_kafka.admin

from tests.interop.seam import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    ClusterDescription,
    Commit,
    GroupDescription,
    Outgoing,
    Partition,
    Receipt,
    Record,
    Refused,
    Replicas,
    Setting,
    Settings,
)

ck_admin: Any = confluent_kafka.admin
"""What it is to export it only imports, so that its types reach nobody."""
_TIMEOUT_S: Final = 60.0
_NOWHERE: Final = -1001
_NAMES: Final = {
    "max.request.size": "message.max.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
}
"""librdkafka's, where Kafka's is another."""
_NOT_HERE: Final = {"max.poll.records", "max.block.ms"}
"""Given at each poll; and nothing blocks."""


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ck.KafkaException as error:
        raise _refused(error.args[0]) from error


def _refused(error: ck.KafkaError) -> Refused:
    return Refused(error.code(), error.str())


def _options(bootstrap: str, settings: Settings) -> dict[str, Any]:
    options = {_NAMES.get(name, name): value for name, value in settings.items() if name not in _NOT_HERE}
    return {"bootstrap.servers": bootstrap, **options}


def _of(partition: ck.TopicPartition) -> Partition:
    return Partition(partition.topic, partition.partition)


class _Producer:
    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self._producer = ck.Producer(_options(bootstrap, settings))

    def send(self, topic: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        receipts: dict[int, Receipt] = {}
        errors: list[ck.KafkaError] = []

        def delivered(number: int) -> Callable[[ck.KafkaError | None, ck.Message], None]:
            def done(error: ck.KafkaError | None, message: ck.Message) -> None:
                if error is not None:
                    errors.append(error)
                    return
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                receipts[number] = Receipt(partition, offset if offset is not None and offset >= 0 else -1)

            return done

        with _refusals():
            for number, each in enumerate(messages):
                self._producer.produce(
                    topic,
                    value=each.value,
                    key=each.key,
                    partition=-1 if each.partition is None else each.partition,
                    headers=list(each.headers),
                    timestamp=each.timestamp_ms or 0,
                    on_delivery=delivered(number),
                )
            left = self._producer.flush(_TIMEOUT_S)
        if errors:
            raise _refused(errors[0])
        assert not left, f"{left} messages are not delivered"
        return [receipts[number] for number in range(len(messages))]

    def close(self) -> None:
        self._producer.flush(5)


class _Consumer:
    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self._is_in_group = "group.id" in settings
        reset = settings.get("auto.offset.reset", "latest")
        self._start = ck.OFFSET_END if reset == "latest" else ck.OFFSET_BEGINNING
        options = {"group.id": "nobody", "enable.auto.commit": False, **settings}
        options["auto.offset.reset"] = "error" if reset == "none" else reset
        if self._is_in_group and "enable.auto.commit" not in settings:
            del options["enable.auto.commit"]
        self._consumer = ck.Consumer(_options(bootstrap, options))

    def assign(self, *partitions: Partition) -> None:
        # Without a group there is nothing to be committed: the client would ask for it all the same.
        start = _NOWHERE if self._is_in_group else self._start
        self._consumer.assign([ck.TopicPartition(*each, start) for each in partitions])

    def subscribe(self, *topics: str) -> None:
        self._consumer.subscribe(list(topics))

    def subscribe_pattern(self, pattern: str) -> None:
        self._consumer.subscribe([f"^{pattern}"])

    def unsubscribe(self) -> None:
        self._consumer.unsubscribe()
        self._consumer.poll(1.0)  # in which the assignment is given up

    def assignment(self) -> frozenset[Partition]:
        return frozenset(map(_of, self._consumer.assignment()))

    def poll(self, *, max_records: int = 500, timeout_s: float = 0.2) -> list[Record]:
        with _refusals():
            found = self._consumer.consume(max_records, timeout_s)
        return list(_records(found))

    def seek(self, partition: Partition, offset: int) -> None:
        """The client takes it only once it has begun to fetch, of which it says nothing."""
        ends = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                self._consumer.seek(ck.TopicPartition(*partition, offset))
                return
            except ck.KafkaException as error:
                if error.args[0].code() != ck.KafkaError._STATE or time.monotonic() > ends:
                    raise _refused(error.args[0]) from error
            time.sleep(0.01)

    def seek_to_beginning(self, partition: Partition) -> None:
        self.seek(partition, ck.OFFSET_BEGINNING)

    def seek_to_end(self, partition: Partition) -> None:
        self.seek(partition, ck.OFFSET_END)

    def pause(self, partition: Partition) -> None:
        self._consumer.pause([ck.TopicPartition(*partition)])

    def resume(self, partition: Partition) -> None:
        self._consumer.resume([ck.TopicPartition(*partition)])

    def position(self, partition: Partition) -> int:
        with _refusals():
            return self._consumer.position([ck.TopicPartition(*partition)])[0].offset

    def bounds(self, partition: Partition) -> tuple[int, int]:
        with _refusals():
            return self._consumer.get_watermark_offsets(ck.TopicPartition(*partition), _TIMEOUT_S)

    def offset_for_time(self, partition: Partition, timestamp_ms: int) -> int | None:
        wanted = ck.TopicPartition(*partition, timestamp_ms)
        with _refusals():
            (found,) = self._consumer.offsets_for_times([wanted], _TIMEOUT_S)
        if found.error is not None:
            raise _refused(found.error)
        return found.offset if found.offset != ck.OFFSET_END else None

    def partitions_of(self, topic: str) -> set[int]:
        with _refusals():
            return set(self._consumer.list_topics(topic, _TIMEOUT_S).topics[topic].partitions)

    def commit(self, offsets: Mapping[Partition, Commit] | None = None) -> None:
        with _refusals():
            if offsets is None:
                done = self._consumer.commit(asynchronous=False)
            else:
                wanted = [
                    ck.TopicPartition(*partition, each.offset, each.metadata)
                    for partition, each in offsets.items()
                ]
                done = self._consumer.commit(offsets=wanted, asynchronous=False)
        for each in done:
            if each.error is not None:
                raise _refused(each.error)

    def commit_later(self) -> None:
        self._consumer.commit(asynchronous=True)

    def committed(self, partition: Partition) -> int | None:
        with _refusals():
            (found,) = self._consumer.committed([ck.TopicPartition(*partition)], _TIMEOUT_S)
        if found.error is not None:
            raise _refused(found.error)
        return found.offset if found.offset >= 0 else None

    def close(self) -> None:
        self._consumer.close()


def _records(found: Sequence[ck.Message]) -> Iterator[Record]:
    for each in found:
        if (error := each.error()) is not None:
            raise _refused(error)
        topic, partition, offset = each.topic(), each.partition(), each.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        kind, timestamp_ms = each.timestamp()
        headers: Any = each.headers() or ()
        yield Record(
            Partition(topic, partition),
            offset,
            each.key(),
            each.value(),
            tuple(headers),
            timestamp_ms,
            LOG_APPEND_TIME if kind == ck.TIMESTAMP_LOG_APPEND_TIME else CREATE_TIME,
        )


class _Admin:
    def __init__(self, bootstrap: str) -> None:
        self._admin = ck_admin.AdminClient({"bootstrap.servers": bootstrap})

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        factor: int = -1,
        assignment: Sequence[Sequence[int]] = (),
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        given: dict[str, Any] = {"num_partitions": partitions, "replication_factor": factor}
        if assignment:
            given = {
                "num_partitions": len(assignment),
                "replica_assignment": [list(each) for each in assignment],
            }
        topic = ck_admin.NewTopic(name, **given, config=dict(configs or {}))
        _only(self._admin.create_topics([topic], validate_only=validate_only))

    def delete_topic(self, name: str) -> None:
        _only(self._admin.delete_topics([name]))

    def topics(self) -> set[str]:
        with _refusals():
            return set(self._admin.list_topics(timeout=_TIMEOUT_S).topics)

    def describe_topic(self, name: str) -> list[Replicas]:
        found = _only(self._admin.describe_topics(ck.TopicCollection([name])))
        return [
            Replicas(
                each.leader.id if each.leader is not None else -1,
                tuple(node.id for node in each.replicas),
                frozenset(node.id for node in each.isr),
            )
            for each in sorted(found.partitions, key=lambda each: int(each.id))
        ]

    def describe_cluster(self) -> ClusterDescription:
        found = _result(self._admin.describe_cluster())
        brokers = {each.id: f"{each.host}:{each.port}" for each in found.nodes}
        return ClusterDescription(found.cluster_id, found.controller.id, brokers)

    def create_partitions(self, topic: str, total: int, *, assignment: Sequence[Sequence[int]] = ()) -> None:
        given: dict[str, Any] = {}
        if assignment:
            given["replica_assignment"] = [list(each) for each in assignment]
        wanted = ck_admin.NewPartitions(topic, total, **given)
        _only(self._admin.create_partitions([wanted]))

    def describe_topic_config(self, topic: str) -> dict[str, Setting]:
        return self._describe(ck_admin.ResourceType.TOPIC, topic)

    def describe_broker_config(self, broker: int) -> dict[str, Setting]:
        return self._describe(ck_admin.ResourceType.BROKER, str(broker))

    def _describe(self, kind: Any, name: str) -> dict[str, Setting]:
        found = _only(self._admin.describe_configs([ck_admin.ConfigResource(kind, name)]))
        return {key: Setting(each.value, each.source, each.is_read_only) for key, each in found.items()}

    def alter_config(self, topic: str, configs: Mapping[str, str]) -> None:
        resource = ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, topic, set_config=dict(configs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            _only(self._admin.alter_configs([resource]))

    def change_config(
        self,
        topic: str,
        *,
        put: Mapping[str, str] | None = None,
        delete: Sequence[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
    ) -> None:
        kinds = ck_admin.AlterConfigOpType
        wanted: list[tuple[str, str | None, Any]] = [
            *((name, value, kinds.SET) for name, value in (put or {}).items()),
            *((name, None, kinds.DELETE) for name in delete),
            *((name, value, kinds.APPEND) for name, value in (append or {}).items()),
            *((name, value, kinds.SUBTRACT) for name, value in (subtract or {}).items()),
        ]
        changes = [
            ck_admin.ConfigEntry(name, value, incremental_operation=kind) for name, value, kind in wanted
        ]
        resource = ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, topic, incremental_configs=changes)
        _only(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, partition: Partition, before: int) -> int:
        wanted = ck.TopicPartition(*partition, before)
        return int(_only(self._admin.delete_records([wanted])).low_watermark)

    def groups(self) -> set[str]:
        found = _result(self._admin.list_consumer_groups())
        assert not found.errors, found.errors
        return {each.group_id for each in found.valid}

    def describe_group(self, group: str) -> GroupDescription:
        found = _only(self._admin.describe_consumer_groups([group]))
        members = tuple(frozenset(map(_of, member.assignment.topic_partitions)) for member in found.members)
        return GroupDescription(found.state.name.lower(), members)

    def group_offsets(self, group: str, *partitions: Partition) -> dict[Partition, Commit]:
        wanted = [ck.TopicPartition(*each) for each in partitions] or None
        asked = ck.ConsumerGroupTopicPartitions(group, wanted)
        found = _only(self._admin.list_consumer_group_offsets([asked]))
        return {
            _of(each): Commit(max(each.offset, -1), each.metadata or "") for each in found.topic_partitions
        }

    def elect_preferred(self, partition: Partition) -> None:
        found = _result(self._admin.elect_leaders(ck.ElectionType.PREFERRED, [ck.TopicPartition(*partition)]))
        for error in found.values():
            if error is not None:
                raise _refused(error.args[0] if isinstance(error, ck.KafkaException) else error)

    def list_offset(self, partition: Partition, spec: int) -> int:
        words = {
            -1: ck_admin.OffsetSpec.latest,
            -2: ck_admin.OffsetSpec.earliest,
            -3: ck_admin.OffsetSpec.max_timestamp,
        }
        wanted = words[spec]() if spec < 0 else ck_admin.OffsetSpec.for_timestamp(spec)
        return int(_only(self._admin.list_offsets({ck.TopicPartition(*partition): wanted})).offset)

    def describe_acls(self) -> None:
        _result(self._admin.describe_acls(_acl(ck_admin.AclBindingFilter)))

    def create_acl(self) -> None:
        _only(self._admin.create_acls([_acl(ck_admin.AclBinding)]))

    def delete_acls(self) -> None:
        _only(self._admin.delete_acls([_acl(ck_admin.AclBindingFilter)]))

    def delete_group(self, group: str) -> None:
        _only(self._admin.delete_consumer_groups([group]))

    def alter_group_offset(self, group: str, partition: Partition, offset: int) -> None:
        wanted = ck.ConsumerGroupTopicPartitions(group, [ck.TopicPartition(*partition, offset)])
        done = _only(self._admin.alter_consumer_group_offsets([wanted]))
        for each in done.topic_partitions:
            if each.error is not None:
                raise _refused(each.error)

    def close(self) -> None:
        """It ends when nobody holds it."""


def _result(future: Any) -> Any:
    with _refusals():
        return future.result(_TIMEOUT_S)


def _only(futures: Mapping[Any, Any]) -> Any:
    (future,) = futures.values()
    return _result(future)


def _acl(kind: Any) -> Any:
    return kind(
        ck_admin.ResourceType.TOPIC,
        "t",
        ck_admin.ResourcePatternType.LITERAL,
        "User:somebody",
        "*",
        ck_admin.AclOperation.READ,
        ck_admin.AclPermissionType.ALLOW,
    )


class Confluent:
    name = "confluent-kafka"

    def producer(self, bootstrap: str, settings: Settings) -> _Producer:
        with _refusals():
            return _Producer(bootstrap, settings)

    def consumer(self, bootstrap: str, settings: Settings) -> _Consumer:
        with _refusals():
            return _Consumer(bootstrap, settings)

    def admin(self, bootstrap: str) -> _Admin:
        with _refusals():
            return _Admin(bootstrap)

    def close(self) -> None:
        """Nothing is shared between its instances."""
