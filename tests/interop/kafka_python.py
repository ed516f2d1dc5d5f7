"""kafka-python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import kafka
import kafka.admin
from kafka.errors import KafkaError, for_code
from kafka.structs import OffsetAndMetadata, TopicPartition

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

_TIMEOUT_S = 60.0


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (KafkaError, ValueError) as error:  # the latter: what it does not even ask a broker
        raise Refused(getattr(error, "errno", None) or -1, f"{type(error).__name__}: {error}") from error


def _check(code: int, message: str | None = None) -> None:
    if code:
        raise Refused(code, message or for_code(code).__name__)


def _check_class(error: Any) -> None:
    """Some results are the error's class, `NoError` for none."""
    if error is not None:
        _check(error.errno)


def _options(settings: Settings) -> dict[str, Any]:
    options = {name.replace(".", "_"): value for name, value in settings.items()}
    if options.get("compression_type") == "none":
        options["compression_type"] = None
    return options


def _of(partition: TopicPartition) -> Partition:
    return Partition(partition.topic, partition.partition)


class _Producer:
    def __init__(self, bootstrap: str, settings: Settings) -> None:
        # Not the default, which is to be idempotent: what a behaviour wants it says.
        given = {"enable.idempotence": False, **settings}
        self._producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, **_options(given))

    def send(self, topic: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        with _refusals():
            futures = [
                self._producer.send(
                    topic,
                    value=each.value,
                    key=each.key,
                    headers=list(each.headers),
                    partition=each.partition,
                    timestamp_ms=each.timestamp_ms,
                )
                for each in messages
            ]
            self._producer.flush(_TIMEOUT_S)
            found = [future.get(_TIMEOUT_S) for future in futures]
        return [Receipt(each.partition, each.offset) for each in found]

    def close(self) -> None:
        self._producer.close(timeout=5)


class _Consumer:
    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self._consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, **_options(settings))

    def assign(self, *partitions: Partition) -> None:
        self._consumer.assign([TopicPartition(*each) for each in partitions])

    def subscribe(self, *topics: str) -> None:
        self._consumer.subscribe(topics)

    def subscribe_pattern(self, pattern: str) -> None:
        self._consumer.subscribe(pattern=pattern)

    def unsubscribe(self) -> None:
        self._consumer.unsubscribe()

    def assignment(self) -> frozenset[Partition]:
        return frozenset(map(_of, self._consumer.assignment()))

    def poll(self, *, max_records: int = 500, timeout_s: float = 0.2) -> list[Record]:
        with _refusals():
            found = self._consumer.poll(int(timeout_s * 1000), max_records)
        return list(_records(found))

    def seek(self, partition: Partition, offset: int) -> None:
        self._consumer.seek(TopicPartition(*partition), offset)

    def seek_to_beginning(self, partition: Partition) -> None:
        self._consumer.seek_to_beginning(TopicPartition(*partition))

    def seek_to_end(self, partition: Partition) -> None:
        self._consumer.seek_to_end(TopicPartition(*partition))

    def pause(self, partition: Partition) -> None:
        self._consumer.pause(TopicPartition(*partition))

    def resume(self, partition: Partition) -> None:
        self._consumer.resume(TopicPartition(*partition))

    def position(self, partition: Partition) -> int:
        with _refusals():
            return int(self._consumer.position(TopicPartition(*partition)))

    def bounds(self, partition: Partition) -> tuple[int, int]:
        of = TopicPartition(*partition)
        with _refusals():
            return self._consumer.beginning_offsets([of])[of], self._consumer.end_offsets([of])[of]

    def offset_for_time(self, partition: Partition, timestamp_ms: int) -> int | None:
        of = TopicPartition(*partition)
        with _refusals():
            found = self._consumer.offsets_for_times({of: timestamp_ms})[of]
        return found.offset if found is not None else None

    def partitions_of(self, topic: str) -> set[int]:
        with _refusals():
            return self._consumer.partitions_for_topic(topic) or set()

    def commit(self, offsets: Mapping[Partition, Commit] | None = None) -> None:
        with _refusals():
            self._consumer.commit(_commits(offsets) if offsets is not None else None)

    def commit_later(self) -> None:
        self._consumer.commit_async()

    def committed(self, partition: Partition) -> int | None:
        with _refusals():
            found: int | None = self._consumer.committed(TopicPartition(*partition))
        return found

    def close(self) -> None:
        self._consumer.close(timeout_ms=5_000)


def _records(found: Mapping[TopicPartition, Iterable[Any]]) -> Iterator[Record]:
    for of, records in found.items():
        for each in records:
            yield Record(
                _of(of),
                each.offset,
                each.key,
                each.value,
                tuple((key, bytes(value)) for key, value in each.headers),
                each.timestamp,
                each.timestamp_type,
            )


def _commits(offsets: Mapping[Partition, Commit]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(*partition): OffsetAndMetadata(each.offset, each.metadata, -1)
        for partition, each in offsets.items()
    }


class _Admin:
    def __init__(self, bootstrap: str) -> None:
        self._admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)

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
        topic: dict[str, Any] = {"configs": dict(configs or {})}
        if assignment:
            topic["assignments"] = {number: list(each) for number, each in enumerate(assignment)}
        else:
            topic |= {"num_partitions": partitions, "replication_factor": factor}
        with _refusals():
            self._admin.create_topics({name: topic}, validate_only=validate_only)

    def delete_topic(self, name: str) -> None:
        with _refusals():
            self._admin.delete_topics([name])

    def topics(self) -> set[str]:
        with _refusals():
            return set(self._admin.list_topics())

    def describe_topic(self, name: str) -> list[Replicas]:
        with _refusals():
            (topic,) = self._admin.describe_topics([name])
        _check(topic["error_code"])
        for each in topic["partitions"]:
            if each["error_code"] != NO_LEADER:
                _check(each["error_code"])
        return [
            Replicas(each["leader_id"], tuple(each["replica_nodes"]), frozenset(each["isr_nodes"]))
            for each in sorted(topic["partitions"], key=lambda each: int(each["partition_index"]))
        ]

    def describe_cluster(self) -> ClusterDescription:
        with _refusals():
            found = self._admin.describe_cluster()
        brokers = {each["broker_id"]: f"{each['host']}:{each['port']}" for each in found["brokers"]}
        return ClusterDescription(found["cluster_id"], found["controller_id"], brokers)

    def create_partitions(self, topic: str, total: int, *, assignment: Sequence[Sequence[int]] = ()) -> None:
        wanted: Any = total
        if assignment:
            wanted = {"count": total, "assignments": [list(each) for each in assignment]}
        with _refusals():
            self._admin.create_partitions({topic: wanted})

    def describe_topic_config(self, topic: str) -> dict[str, Setting]:
        return self._describe("TOPIC", topic)

    def describe_broker_config(self, broker: int) -> dict[str, Setting]:
        return self._describe("BROKER", str(broker))

    def _describe(self, kind: str, name: str) -> dict[str, Setting]:
        resource = kafka.admin.ConfigResource(kind, name)
        with _refusals():
            found = self._admin.describe_configs([resource], config_filter="all")
        return {
            key: Setting(
                each["value"],
                kafka.admin.ConfigSourceType[each["config_source"]].value,
                bool(each["read_only"]),
            )
            for key, each in found[kind.lower()][name].items()
        }

    def alter_config(self, topic: str, configs: Mapping[str, str]) -> None:
        self._alter(topic, dict(configs), incremental=False)

    def change_config(
        self,
        topic: str,
        *,
        put: Mapping[str, str] | None = None,
        delete: Sequence[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
    ) -> None:
        changes: dict[str, tuple[str, str | None]] = {}
        changes |= {name: ("SET", each) for name, each in (put or {}).items()}
        changes |= {name: ("DELETE", None) for name in delete}
        changes |= {name: ("APPEND", each) for name, each in (append or {}).items()}
        changes |= {name: ("SUBTRACT", each) for name, each in (subtract or {}).items()}
        self._alter(topic, changes, incremental=True)

    def _alter(self, topic: str, changes: dict[str, Any], *, incremental: bool) -> None:
        resource = kafka.admin.ConfigResource("TOPIC", topic, changes)
        with _refusals():
            found = self._admin.alter_configs([resource], raise_on_unknown=False, incremental=incremental)
        result = found["topic"][topic]
        if result != "OK":  # "[Error 40] InvalidConfigurationError: …"
            code = re.match(r"\[Error (\d+)\]", result)
            assert code is not None, result
            _check(int(code[1]), result)

    def delete_records(self, partition: Partition, before: int) -> int:
        of = TopicPartition(*partition)
        with _refusals():
            return int(self._admin.delete_records({of: before})[of]["low_watermark"])

    def groups(self) -> set[str]:
        with _refusals():
            return {each["group_id"] for each in self._admin.list_groups()}

    def describe_group(self, group: str) -> GroupDescription:
        with _refusals():
            found = self._admin.describe_groups([group])[group]
        assert found["error"] is None, found
        members = []
        for member in found["members"]:
            assigned = member["member_assignment"]
            topics = assigned["assigned_partitions"] if assigned else []
            parts = [Partition(each["topic"], number) for each in topics for number in each["partitions"]]
            members.append(frozenset(parts))
        return GroupDescription(found["group_state"].lower(), tuple(members))

    def group_offsets(self, group: str, *partitions: Partition) -> dict[Partition, Commit]:
        wanted = [TopicPartition(*each) for each in partitions] or None
        with _refusals():
            found = self._admin.list_group_offsets({group: wanted})[group]
        return {_of(of): Commit(each.offset, each.metadata or "") for of, each in found.items()}

    def elect_preferred(self, partition: Partition) -> None:
        with _refusals():
            found = self._admin.elect_leaders(0, {partition.topic: [partition.number]}, raise_errors=False)
        _check(found.error_code)
        for result in found.replica_election_results:
            for each in result.partition_result:
                _check(each.error_code)

    def log_dirs(self) -> dict[int, dict[Partition, int]]:
        with _refusals():
            found = self._admin.describe_log_dirs()
        return {
            broker["broker"]: {
                Partition(topic["name"], each["partition_index"]): each["partition_size"]
                for log_dir in broker["log_dirs"]
                for topic in log_dir["topics"]
                for each in topic["partitions"]
            }
            for broker in found
        }

    def reassign(self, partition: Partition, replicas: Sequence[int] | None) -> None:
        of = TopicPartition(*partition)
        wanted = list(replicas) if replicas is not None else None
        with _refusals():
            found = self._admin.alter_partition_reassignments({of: wanted})
        _check_class(found[of])

    def reassignments(self) -> set[Partition]:
        with _refusals():
            return set(map(_of, self._admin.list_partition_reassignments()))

    def list_offset(self, partition: Partition, spec: int) -> int:
        of = TopicPartition(*partition)
        wanted = kafka.admin.OffsetSpec(spec) if spec < 0 else spec
        with _refusals():
            return int(self._admin.list_partition_offsets({of: wanted})[of].offset)

    def describe_acls(self) -> None:
        with _refusals():
            self._admin.describe_acls(_acl(kafka.admin.ACLFilter))

    def create_acl(self) -> None:
        for error in self._admin.create_acls([_acl(kafka.admin.ACL)])["failed"]:
            _check_class(error)

    def delete_acls(self) -> None:
        for _, _, error in self._admin.delete_acls([_acl(kafka.admin.ACLFilter)]):
            _check_class(error)

    def delete_group(self, group: str) -> None:
        with _refusals():
            result = self._admin.delete_groups([group])[group]
        if result != "OK":
            raise Refused(getattr(kafka.errors, result).errno, result)

    def alter_group_offset(self, group: str, partition: Partition, offset: int) -> None:
        with _refusals():
            found = self._admin.alter_group_offsets(group, _commits({partition: Commit(offset)}))
        _check_class(found[TopicPartition(*partition)])

    def delete_group_offset(self, group: str, partition: Partition) -> None:
        of = TopicPartition(*partition)
        with _refusals():
            found = self._admin.delete_group_offsets(group, [of])
        _check_class(found[of])

    def close(self) -> None:
        self._admin.close()


def _acl(kind: Any) -> Any:
    return kind(
        "User:somebody",
        "*",
        kafka.admin.ACLOperation.READ,
        kafka.admin.ACLPermissionType.ALLOW,
        kafka.admin.ResourcePattern(kafka.admin.ResourceType.TOPIC, "t"),
    )


class KafkaPython:
    name = "kafka-python"

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
