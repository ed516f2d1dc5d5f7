"""aiokafka, on an event loop in a thread: behaviours are not written twice for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import aiokafka
from aiokafka import admin as aio_admin
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError, for_code
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from tests.interop.seam import (
    NO_LEADER,
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

_TIMEOUT_S: Final = 60.0
_NAMES: Final = {"batch.size": "max_batch_size", "fetch.max.wait.ms": "fetch_max_wait_ms"}
_NOT_HERE: Final = {"allow.auto.create.topics", "delivery.timeout.ms", "max.block.ms"}
"""What the client has no setting for, and behaves as if it had."""
T = TypeVar("T")


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise Refused(getattr(error, "errno", None) or -1, f"{type(error).__name__}: {error}") from error


def _check(code: int, message: str | None = None) -> None:
    if code:
        raise Refused(code, message or for_code(code).__name__)


def _options(settings: Settings) -> dict[str, Any]:
    options = {
        _NAMES.get(name, name.replace(".", "_")): value
        for name, value in settings.items()
        if name not in _NOT_HERE
    }
    if options.get("compression_type") == "none":
        options["compression_type"] = None
    return options


def _of(partition: TopicPartition) -> Partition:
    return Partition(partition.topic, partition.partition)


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with _refusals():
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT_S + 10)

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT_S)
        self._loop.close()


async def _here(call: Any, *arguments: Any, **options: Any) -> Any:
    """Some of its calls wait for nothing, and still belong to its loop."""
    return call(*arguments, **options)


class _Producer:
    def __init__(self, loop: _Loop, bootstrap: str, settings: Settings) -> None:
        self._loop = loop
        self._producer: Any = loop.run(
            _here(aiokafka.AIOKafkaProducer, bootstrap_servers=bootstrap, **_options(settings))
        )
        loop.run(self._producer.start())

    def send(self, topic: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        return self._loop.run(self._send(topic, messages))

    async def _send(self, topic: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        futures = [
            await self._producer.send(
                topic,
                value=each.value,
                key=each.key,
                partition=each.partition,
                headers=list(each.headers),
                timestamp_ms=each.timestamp_ms,
            )
            for each in messages
        ]
        found = [await future for future in futures]
        # Without an acknowledgement there is no word of where it went.
        nowhere = Receipt(-1, -1)
        return [nowhere if each is None else Receipt(each.partition, each.offset) for each in found]

    def close(self) -> None:
        self._loop.run(self._producer.stop())


class _Consumer:
    def __init__(self, loop: _Loop, bootstrap: str, settings: Settings) -> None:
        self._loop = loop
        options = _options({"enable.auto.commit": "group.id" in settings, **settings})
        self._consumer: Any = loop.run(
            _here(aiokafka.AIOKafkaConsumer, bootstrap_servers=bootstrap, **options)
        )
        loop.run(self._consumer.start())

    def assign(self, *partitions: Partition) -> None:
        self._loop.run(_here(self._consumer.assign, [TopicPartition(*each) for each in partitions]))

    def subscribe(self, *topics: str) -> None:
        self._loop.run(_here(self._consumer.subscribe, list(topics)))

    def subscribe_pattern(self, pattern: str) -> None:
        self._loop.run(_here(self._consumer.subscribe, pattern=pattern))

    def unsubscribe(self) -> None:
        self._loop.run(_here(self._consumer.unsubscribe))

    def assignment(self) -> frozenset[Partition]:
        return frozenset(map(_of, self._consumer.assignment()))

    def poll(self, *, max_records: int = 500, timeout_s: float = 0.2) -> list[Record]:
        found = self._loop.run(
            self._consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=max_records)
        )
        return [
            Record(
                _of(of),
                each.offset,
                each.key,
                each.value,
                tuple((key, bytes(value)) for key, value in each.headers),
                each.timestamp,
                each.timestamp_type,
            )
            for of, records in found.items()
            for each in records
        ]

    def seek(self, partition: Partition, offset: int) -> None:
        self._loop.run(_here(self._consumer.seek, TopicPartition(*partition), offset))

    def seek_to_beginning(self, partition: Partition) -> None:
        self._loop.run(self._consumer.seek_to_beginning(TopicPartition(*partition)))

    def seek_to_end(self, partition: Partition) -> None:
        self._loop.run(self._consumer.seek_to_end(TopicPartition(*partition)))

    def pause(self, partition: Partition) -> None:
        self._loop.run(_here(self._consumer.pause, TopicPartition(*partition)))

    def resume(self, partition: Partition) -> None:
        self._loop.run(_here(self._consumer.resume, TopicPartition(*partition)))

    def position(self, partition: Partition) -> int:
        return int(self._loop.run(self._consumer.position(TopicPartition(*partition))))

    def bounds(self, partition: Partition) -> tuple[int, int]:
        of = TopicPartition(*partition)
        beginnings = self._loop.run(self._consumer.beginning_offsets([of]))
        return beginnings[of], self._loop.run(self._consumer.end_offsets([of]))[of]

    def offset_for_time(self, partition: Partition, timestamp_ms: int) -> int | None:
        of = TopicPartition(*partition)
        found = self._loop.run(self._consumer.offsets_for_times({of: timestamp_ms}))[of]
        return found.offset if found is not None else None

    def partitions_of(self, topic: str) -> set[int]:
        return self._consumer.partitions_for_topic(topic) or set()

    def commit(self, offsets: Mapping[Partition, Commit] | None = None) -> None:
        wanted = None
        if offsets is not None:
            wanted = {
                TopicPartition(*partition): OffsetAndMetadata(each.offset, each.metadata)
                for partition, each in offsets.items()
            }
        self._loop.run(self._consumer.commit(wanted))

    def commit_later(self) -> None:
        self._loop.begin(self._consumer.commit())

    def committed(self, partition: Partition) -> int | None:
        found: int | None = self._loop.run(self._consumer.committed(TopicPartition(*partition)))
        return found

    def close(self) -> None:
        self._loop.run(self._consumer.stop())


class _Admin:
    def __init__(self, loop: _Loop, bootstrap: str) -> None:
        self._loop = loop
        self._admin: Any = loop.run(_here(aio_admin.AIOKafkaAdminClient, bootstrap_servers=bootstrap))
        loop.run(self._admin.start())

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
        lists = {number: list(each) for number, each in enumerate(assignment)} or None
        topic = aio_admin.NewTopic(name, partitions, factor, lists, dict(configs or {}))
        found = self._loop.run(self._admin.create_topics([topic], validate_only=validate_only))
        for _, code, message in found.topic_errors:
            _check(code, message)

    def delete_topic(self, name: str) -> None:
        found = self._loop.run(self._admin.delete_topics([name]))
        for _, code in found.topic_error_codes:
            _check(code)

    def topics(self) -> set[str]:
        return set(self._loop.run(self._admin.list_topics()))

    def describe_topic(self, name: str) -> list[Replicas]:
        (topic,) = self._loop.run(self._admin.describe_topics([name]))
        _check(topic["error_code"])
        for each in topic["partitions"]:
            if each["error_code"] != NO_LEADER:
                _check(each["error_code"])
        return [
            Replicas(each["leader"], tuple(each["replicas"]), frozenset(each["isr"]))
            for each in sorted(topic["partitions"], key=lambda each: int(each["partition"]))
        ]

    def describe_cluster(self) -> ClusterDescription:
        found = self._loop.run(self._admin.describe_cluster())
        brokers = {each["node_id"]: f"{each['host']}:{each['port']}" for each in found["brokers"]}
        return ClusterDescription(found["cluster_id"], found["controller_id"], brokers)

    def create_partitions(self, topic: str, total: int, *, assignment: Sequence[Sequence[int]] = ()) -> None:
        wanted = aio_admin.NewPartitions(total, [list(each) for each in assignment] or None)
        self._loop.run(self._admin.create_partitions({topic: wanted}))

    def describe_topic_config(self, topic: str) -> dict[str, Setting]:
        return self._describe(aio_admin.config_resource.ConfigResourceType.TOPIC, topic)

    def describe_broker_config(self, broker: int) -> dict[str, Setting]:
        return self._describe(aio_admin.config_resource.ConfigResourceType.BROKER, str(broker))

    def _describe(self, kind: Any, name: str) -> dict[str, Setting]:
        resource = aio_admin.config_resource.ConfigResource(kind, name)
        (found,) = self._loop.run(self._admin.describe_configs([resource]))
        ((code, message, _, _, entries),) = found.resources
        _check(code, message)
        return {each[0]: Setting(each[1], each[3], each[2]) for each in entries}

    def alter_config(self, topic: str, configs: Mapping[str, str]) -> None:
        kind = aio_admin.config_resource.ConfigResourceType.TOPIC
        resource = aio_admin.config_resource.ConfigResource(kind, topic, dict(configs))
        (found,) = self._loop.run(self._admin.alter_configs([resource]))
        for code, message, _, _ in found.resources:
            _check(code, message)

    def delete_records(self, partition: Partition, before: int) -> int:
        of = TopicPartition(*partition)
        wanted = aio_admin.RecordsToDelete(before)
        return int(self._loop.run(self._admin.delete_records({of: wanted}))[of])

    def groups(self) -> set[str]:
        return {each[0] for each in self._loop.run(self._admin.list_consumer_groups())}

    def describe_group(self, group: str) -> GroupDescription:
        (answer,) = self._loop.run(self._admin.describe_consumer_groups([group]))
        ((code, _, state, _, _, members, *_),) = answer.groups
        _check(code)
        assigned = []
        for *_, data in members:
            topics = ConsumerProtocolMemberAssignment.decode(data).assignment if data else []
            parts = frozenset(Partition(topic, each) for topic, numbers in topics for each in numbers)
            assigned.append(parts)
        return GroupDescription(state.lower(), tuple(assigned))

    def group_offsets(self, group: str, *partitions: Partition) -> dict[Partition, Commit]:
        wanted = [TopicPartition(*each) for each in partitions] or None
        found = self._loop.run(self._admin.list_consumer_group_offsets(group, partitions=wanted))
        return {_of(of): Commit(each.offset, each.metadata or "") for of, each in found.items()}

    def close(self) -> None:
        self._loop.run(self._admin.close())


class Aiokafka:
    name = "aiokafka"

    def __init__(self) -> None:
        self._loop = _Loop()

    def producer(self, bootstrap: str, settings: Settings) -> _Producer:
        return _Producer(self._loop, bootstrap, settings)

    def consumer(self, bootstrap: str, settings: Settings) -> _Consumer:
        return _Consumer(self._loop, bootstrap, settings)

    def admin(self, bootstrap: str) -> _Admin:
        return _Admin(self._loop, bootstrap)

    def close(self) -> None:
        self._loop.close()
