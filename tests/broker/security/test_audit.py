"""The audit log: a line for each login, refusal and administrative change, for its owner alone."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.broker import AsyncBroker, BrokerConfig
from logstore.broker.broker import _open_audit
from logstore.broker.dispatch import Call
from logstore.broker.errors import AuthenticationFailed
from logstore.broker.handlers import HANDLERS
from logstore.broker.health import Loading, health
from logstore.broker.metrics import Watched, page
from logstore.broker.security.audit import MOST_TEXT, Audit, AuditFile
from logstore.broker.security.audited import ADMINISTRATIVE, changes_of
from logstore.broker.settings import ServiceConfig
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import APIS
from logstore.broker.wire.declarations import Struct
from logstore.disk.files import OsDisk
from logstore.errors import InvalidConfig
from logstore.testing.disks.faulty import Fault, FaultyDisk
from tests.broker.asking import Asker
from tests.broker.security.test_limiter import Line
from tests.broker.security.test_login import Bench, by, run


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- the file ---------------------------------------------------------------------------------


def test_files_are_bounded_private_and_replace_each_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.touch(0o644)
    audit = Audit(AuditFile(str(path), 1_000, 3), lambda: 1_700_000_000_123)
    for number in range(100):
        audit("login", number=number)
    audit.close()
    files = [path, tmp_path / "audit.log.1", tmp_path / "audit.log.2"]
    assert sorted(tmp_path.iterdir()) == files
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
    assert all(each.stat().st_size < 1_100 for each in files)
    kept = [line["number"] for each in reversed(files) for line in lines(each)]
    assert kept == list(range(kept[0], 100)), "the newest lines, without a gap"
    assert lines(path)[-1] == {"time": "2023-11-14T22:13:20.123Z", "event": "login", "number": 99}


@pytest.mark.parametrize("event", ["login", "login renewed", "login failed", "refused", "denied"])
def test_no_flood_that_any_client_can_cause_pushes_out_a_change(event: str, tmp_path: Path) -> None:
    settings = ServiceConfig(
        audit_log_path=str(tmp_path / "audit.log"), audit_log_max_bytes=1 << 10, audit_log_files=2
    )
    audit = _open_audit(settings)
    audit("topic deleted", topic="orders")
    for number in range(100):
        audit(event, host=f"10.0.0.{number}")
    audit.close()
    assert [each["event"] for each in lines(tmp_path / "audit.log")] == ["topic deleted"]
    access = tmp_path / "audit.log.access"
    assert lines(access)[-1]["host"] == "10.0.0.99"
    assert access.stat().st_mode & 0o777 == 0o600
    assert {each.name for each in tmp_path.iterdir()} == {
        "audit.log", "audit.log.access", "audit.log.access.1",
    }  # fmt: skip


def test_each_file_fails_by_itself(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    paths = [str(tmp_path / name) for name in ("audit.log", "audit.log.access")]
    changes, access = (AuditFile(each, 1 << 20, 2, disk=disk) for each in paths)
    audit = Audit(changes, access=access)
    disk.inject(Fault(operation="pwrite", errno=errno.ENOSPC, path=paths[1].__eq__))
    audit("login failed")
    audit("topic created")
    assert audit.state.error, "a line in the other file does not end it"
    audit("login")
    assert (audit.state.error, audit.state.lines, audit.state.failed) == ("", 3, 1)
    audit.close()


def test_a_torn_line_stays_alone_and_a_restart_appends(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"event":"log')
    for number in range(2):
        audit = Audit(AuditFile(str(path), 1 << 20, 2))
        audit("login", number=number)
        audit.close()
    torn, *whole = path.read_text().splitlines()
    assert (torn, [json.loads(each)["number"] for each in whole]) == ('{"event":"log', [0, 1])


def test_two_processes_with_one_file_lose_no_lines(tmp_path: Path) -> None:
    """Each broker should have a file of its own; by mistake they share one."""
    path = tmp_path / "audit.log"
    both = [Audit(AuditFile(str(path), 1 << 20, 2)) for _ in range(2)]
    for number in range(10):
        both[number % 2]("login", number=number)
    assert [line["number"] for line in lines(path)] == list(range(10))
    for each in both:
        each.close()


@pytest.mark.parametrize("operation", ["pwrite", "rename"])
def test_a_failing_file_is_told_and_its_lines_go_to_the_logger(
    operation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path, disk = tmp_path / "audit.log", FaultyDisk(OsDisk())
    audit = Audit(AuditFile(str(path), 1, 2, disk=disk))
    audit("login", number=0)
    disk.inject(Fault(operation=operation, errno=errno.ENOSPC))
    audit("login", number=1)
    assert audit.state.error
    text = page(Watched(audit=audit.state)).content.decode()
    assert "logstore_audit_failing 1.0" in text
    assert "logstore_audit_failed_lines_total 1.0" in text
    told = json.loads(health(Watched(audit=audit.state), Loading([])).content)["audit_log"]
    assert (told["state"], told["failed_lines"], told["path"]) == ("failing", 1, str(path))
    of_audit = [each.getMessage() for each in caplog.records if each.name == "logstore.audit"]
    assert [json.loads(each) for each in of_audit] == [{"event": "login", "number": 1}]
    assert [each.levelname for each in caplog.records if "cannot be written" in each.getMessage()] == [
        "ERROR"
    ]
    audit("login", number=2)
    assert (audit.state.error, audit.state.lines, audit.state.failed) == ("", 3, 1)
    assert any("is written again; 1 lines are missing" in each.getMessage() for each in caplog.records)
    assert [line["number"] for line in lines(path)] == [2]
    assert json.loads(health(Watched(audit=audit.state), Loading([])).content)["audit_log"]["state"] == "ok"
    audit.close()


@pytest.mark.parametrize("operation", ["open", "rename"])
def test_earlier_files_stay_while_no_new_one_can_be_begun(operation: str, tmp_path: Path) -> None:
    path, disk = tmp_path / "audit.log", FaultyDisk(OsDisk())
    audit = Audit(AuditFile(str(path), 1, 4, disk=disk))
    for number in range(4):
        audit("login", number=number)
    for _ in range(20):
        disk.inject(Fault(operation=operation, errno=errno.EMFILE, path=str(path).__eq__))
        audit("login")
    assert audit.state.failed == 20
    audit("login", number=4)
    audit.close()
    files = [path, *(tmp_path / f"audit.log.{number}" for number in (1, 2, 3))]
    assert [line["number"] for each in files for line in lines(each)] == [4, 3, 2, 1]


def test_a_file_that_was_removed_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(AuditFile(str(path), 1 << 20, 2))
    audit("login", number=0)
    path.unlink()
    audit("login", number=1)
    audit.close()
    assert [line["number"] for line in lines(path)] == [1]
    assert path.stat().st_mode & 0o777 == 0o600


def test_names_of_clients_forge_no_line_and_fill_no_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(AuditFile(str(path), 1 << 20, 2))
    audit("denied", name='x"}\n{"event":"login"}\r\u2028', long="ä" * 1_000_000, many=["x"] * 1_000_000)
    audit.close()
    (line,) = lines(path)
    assert line["name"] == 'x"}\n{"event":"login"}\r\u2028'
    assert line["long"] == "ä" * MOST_TEXT + "… (1000000 characters)"
    assert path.stat().st_size < 10_000
    assert len(path.read_bytes().splitlines()) == 1


@pytest.mark.parametrize(
    "settings", [{"audit.log.files": 1}, {"audit.log.max.bytes": 1_023}, {"audit.log.max.bytes": "x"}]
)
def test_settings_that_could_keep_nothing(settings: Mapping[str, str | int]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(settings))):
        AsyncBroker(BrokerConfig(settings=settings))


def test_a_broker_does_not_start_without_its_audit_file(tmp_path: Path) -> None:
    async def test() -> None:
        missing = str(tmp_path / "none" / "audit.log")
        with pytest.raises(FileNotFoundError, match=r"audit\.log"):
            await AsyncBroker(BrokerConfig(settings={"audit.log.path": missing})).start()

    run(test)


# --- logins, refusals and changes ---------------------------------------------------------------


def test_a_broker_audits_logins_refusals_and_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "logstore.audit")
    path = tmp_path / "audit.log"

    async def test() -> None:
        async with Bench(audit_log_path=str(path)) as bench:
            with pytest.raises(AuthenticationFailed):
                async with bench.client(by("PLAIN", password="s3cret-wrong")) as client:
                    await client.metadata()
            async with bench.client(by("PLAIN")) as client:
                await client.create_topic("orders", partitions=2, settings={"retention.ms": "5000"})
                await client.append("orders", b"s3cret-record", partition=0)

    run(test)
    access = tmp_path / "audit.log.access"
    assert not any(each.name == "logstore.audit" for each in caplog.records)
    for each in (path, access):
        assert "s3cret" not in each.read_text()
        assert "ann-secret" not in each.read_text()
    assert {each["event"] for each in lines(access)} == {"login", "login failed"}
    (created,) = lines(path)
    del created["time"]
    assert created == {
        "event": "topic created",
        "by": "User:ann",
        "host": "127.0.0.1",
        "topic": "orders",
        "partitions": 2,
        "settings": {"retention.ms": "5000"},
    }


def test_requests_of_brokers_on_a_listener_for_clients_are_audited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "logstore.audit")
    settings = {
        "listeners": "INTERNAL://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
    }

    async def test() -> None:
        config = BrokerConfig(settings=settings)
        async with AsyncBroker(config) as broker, Asker(broker.listeners["CLIENTS"]) as asker:
            asker.send_bytes(bytes([0, 0, 0, 8, 0, 4, 0, 4, 0, 0, 0, 1]))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await asker.answer_bytes()

    run(test)
    (line,) = [json.loads(each.getMessage()) for each in caplog.records if each.name == "logstore.audit"]
    assert (line["event"], line["principal"], "for brokers" in line["reason"]) == (
        "refused",
        "User:ANONYMOUS",
        True,
    )


def test_changes_of_the_program_itself_are_audited_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "logstore.audit")

    async def test() -> None:
        async with AsyncBroker() as broker:
            await broker.create_topic("orders")
            with pytest.raises(Exception, match="exists"):
                await broker.create_topic("orders", partitions=3)

    run(test)
    found = [json.loads(each.getMessage()) for each in caplog.records if each.name == "logstore.audit"]
    assert [(each["event"], each["by"]) for each in found] == [("topic created", "Program:in-process")]


def test_who_calls_itself_a_broker_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "logstore.audit")

    async def test() -> None:
        async with AsyncBroker() as broker, Asker(broker.address, "broker-7-fetcher-0") as asker:
            topic = t.CreateTopicsRequestCreatableTopic(name="orders", num_partitions=1, replication_factor=1)
            answer = await asker.ask(t.CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
            assert not answer.topics[0].error_code

    run(test)
    found = [json.loads(each.getMessage()) for each in caplog.records if each.name == "logstore.audit"]
    assert [(each["event"], each["by"]) for each in found] == [("topic created", "User:ANONYMOUS")]


# --- which changes, by request and answer -------------------------------------------------------

ANSWERED: list[tuple[Struct, Struct, list[tuple[str, dict[str, object]]]]] = [
    (
        t.DeleteTopicsRequest(topics=[]),
        t.DeleteTopicsResponse(
            responses=[
                t.DeleteTopicsResponseDeletableTopicResult(name="a"),
                t.DeleteTopicsResponseDeletableTopicResult(name="b", error_code=29),
            ]
        ),
        [("topic deleted", {"topic": "a"})],
    ),
    (
        t.CreateTopicsRequest(
            topics=[t.CreateTopicsRequestCreatableTopic(name="a", num_partitions=3)], validate_only=True
        ),
        t.CreateTopicsResponse(topics=[t.CreateTopicsResponseCreatableTopicResult(name="a")]),
        [],
    ),
    (
        t.CreatePartitionsRequest(
            topics=[t.CreatePartitionsRequestCreatePartitionsTopic(name="a", count=9, assignments=None)]
        ),
        t.CreatePartitionsResponse(results=[t.CreatePartitionsResponseCreatePartitionsTopicResult(name="a")]),
        [("partitions created", {"topic": "a", "partitions": 9})],
    ),
    (
        t.IncrementalAlterConfigsRequest(
            resources=[
                t.IncrementalAlterConfigsRequestAlterConfigsResource(
                    resource_type=2,
                    resource_name=name,
                    configs=[
                        t.IncrementalAlterConfigsRequestAlterableConfig(
                            name="retention.ms", config_operation=0, value="5"
                        )
                    ],
                )
                for name in "ab"
            ]
        ),
        t.IncrementalAlterConfigsResponse(
            responses=[
                t.IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                    resource_type=2, resource_name=name, error_code=code
                )
                for name, code in (("a", 0), ("b", 40))
            ]
        ),
        [("settings changed", {"resource": "TOPIC:a", "settings": {"retention.ms": {"set": "5"}}})],
    ),
    (
        t.AlterConfigsRequest(
            resources=[
                t.AlterConfigsRequestAlterConfigsResource(
                    resource_type=2,
                    resource_name="a",
                    configs=[t.AlterConfigsRequestAlterableConfig(name="retention.ms", value="5")],
                )
            ]
        ),
        t.AlterConfigsResponse(
            responses=[t.AlterConfigsResponseAlterConfigsResourceResponse(resource_type=2, resource_name="a")]
        ),
        [("settings changed", {"resource": "TOPIC:a", "settings": {"retention.ms": "5"}})],
    ),
    (
        t.AlterPartitionReassignmentsRequest(
            topics=[
                t.AlterPartitionReassignmentsRequestReassignableTopic(
                    name="a",
                    partitions=[
                        t.AlterPartitionReassignmentsRequestReassignablePartition(
                            partition_index=index, replicas=replicas
                        )
                        for index, replicas in enumerate(([1, 2], None, [3]))
                    ],
                )
            ]
        ),
        t.AlterPartitionReassignmentsResponse(
            responses=[
                t.AlterPartitionReassignmentsResponseReassignableTopicResponse(
                    name="a",
                    partitions=[
                        t.AlterPartitionReassignmentsResponseReassignablePartitionResponse(
                            partition_index=index, error_code=code
                        )
                        for index, code in enumerate((0, 0, 39))
                    ],
                )
            ]
        ),
        [
            ("reassignment begun", {"partition": "a-0", "replicas": [1, 2]}),
            ("reassignment cancelled", {"partition": "a-1", "replicas": None}),
        ],
    ),
    (
        t.ElectLeadersRequest(election_type=1),
        t.ElectLeadersResponse(
            replica_election_results=[
                t.ElectLeadersResponseReplicaElectionResult(
                    topic="a",
                    partition_result=[
                        t.ElectLeadersResponsePartitionResult(partition_id=0),
                        t.ElectLeadersResponsePartitionResult(partition_id=1, error_code=84),
                    ],
                )
            ]
        ),
        [("leader elected", {"partition": "a-0", "election": "unclean"})],
    ),
    (
        t.DeleteRecordsRequest(),
        t.DeleteRecordsResponse(
            topics=[
                t.DeleteRecordsResponseDeleteRecordsTopicResult(
                    name="a",
                    partitions=[
                        t.DeleteRecordsResponseDeleteRecordsPartitionResult(
                            partition_index=0, low_watermark=7
                        )
                    ],
                )
            ]
        ),
        [("records deleted", {"partition": "a-0", "log_start_offset": 7})],
    ),
    (
        t.WriteTxnMarkersRequest(
            markers=[
                t.WriteTxnMarkersRequestWritableTxnMarker(producer_id=7, transaction_result=is_commit)
                for is_commit in (False, True)
            ]
        ),
        t.WriteTxnMarkersResponse(
            markers=[
                t.WriteTxnMarkersResponseWritableTxnMarkerResult(
                    producer_id=7,
                    topics=[
                        t.WriteTxnMarkersResponseWritableTxnMarkerTopicResult(
                            name=name,
                            partitions=[
                                t.WriteTxnMarkersResponseWritableTxnMarkerPartitionResult(
                                    partition_index=index, error_code=code
                                )
                                for index, code in enumerate((0, 47))
                            ],
                        )
                    ],
                )
                for name in ("a", "b")
            ]
        ),
        [
            ("transaction ended", {"partition": "a-0", "producer_id": 7, "outcome": "aborted"}),
            ("transaction ended", {"partition": "b-0", "producer_id": 7, "outcome": "committed"}),
        ],
    ),
    (
        t.AlterReplicaLogDirsRequest(
            dirs=[
                t.AlterReplicaLogDirsRequestAlterReplicaLogDir(
                    path="/b",
                    topics=[t.AlterReplicaLogDirsRequestAlterReplicaLogDirTopic(name="a", partitions=[0, 1])],
                )
            ]
        ),
        t.AlterReplicaLogDirsResponse(
            results=[
                t.AlterReplicaLogDirsResponseAlterReplicaLogDirTopicResult(
                    topic_name="a",
                    partitions=[
                        t.AlterReplicaLogDirsResponseAlterReplicaLogDirPartitionResult(
                            partition_index=index, error_code=code
                        )
                        for index, code in enumerate((0, 57))
                    ],
                )
            ]
        ),
        [("move to log dir begun", {"partition": "a-0", "log_dir": "/b"})],
    ),
    (
        t.DeleteGroupsRequest(groups_names=["g"]),
        t.DeleteGroupsResponse(results=[t.DeleteGroupsResponseDeletableGroupResult(group_id="g")]),
        [("group deleted", {"group": "g"})],
    ),
    (
        t.OffsetDeleteRequest(group_id="g"),
        t.OffsetDeleteResponse(
            topics=[
                t.OffsetDeleteResponseTopic(
                    name="a", partitions=[t.OffsetDeleteResponsePartition(partition_index=4)]
                )
            ]
        ),
        [("offsets deleted", {"group": "g", "partition": "a-4"})],
    ),
]


def test_what_is_confirmed_is_a_change() -> None:
    for request, answer, expected in ANSWERED:
        key = next(key for key, api in APIS.items() if api.request is type(request))
        assert list(changes_of(key, request, answer)) == expected, type(request).__name__
    tested = {type(request) for request, _, _ in ANSWERED}
    assert {APIS[key].request for key in ADMINISTRATIVE} == tested


def test_what_may_have_been_done_is_a_change_with_its_error() -> None:
    """Clients choose how long they wait: a deletion with a timeout of 0 left no trace."""
    request = t.DeleteTopicsRequest(topic_names=["a", "b"])
    result = t.DeleteTopicsResponseDeletableTopicResult
    answer = t.DeleteTopicsResponse(
        responses=[result(name="a", error_code=7), result(name="b", error_code=3)]
    )
    found = list(changes_of(request.KEY, request, answer))
    assert found == [("topic deleted", {"topic": "a", "error": "REQUEST_TIMED_OUT"})]


@pytest.mark.parametrize("key", [21, 27])
def test_what_a_client_does_not_wait_for_is_audited(key: int) -> None:
    """The leader has deleted, or written, when the connection closes."""
    deleted = t.DeleteRecordsRequestDeleteRecordsTopic(
        name="orders", partitions=[t.DeleteRecordsRequestDeleteRecordsPartition(partition_index=3, offset=5)]
    )
    ended = t.WriteTxnMarkersRequestWritableTxnMarkerTopic(name="orders", partition_indexes=[3])
    marker = t.WriteTxnMarkersRequestWritableTxnMarker(producer_id=7, topics=[ended])
    bodies: dict[int, Any] = {
        21: t.DeleteRecordsRequest(topics=[deleted]),
        27: t.WriteTxnMarkersRequest(markers=[marker]),
    }
    abandoned: list[Call] = []
    heard: list[tuple[str, dict[str, object]]] = []
    call = Call(Line("User:bob"), APIS[key], APIS[key].latest, 1, "test")
    call.hear = lambda answer: heard.extend(changes_of(key, bodies[key], answer))

    def waits(call: Call, *_: object) -> None:
        call.on_lost = lambda: abandoned.append(call)

    services: Any = SimpleNamespace(
        runtime=SimpleNamespace(ask_for=waits),
        settings=SimpleNamespace(limits=SimpleNamespace(request_timeout_ms=1)),
    )
    HANDLERS[key](call, bodies[key], services)
    call.lost()
    assert abandoned == [call]
    ((_, facts),) = heard
    assert (facts["partition"], facts["error"]) == ("orders-3", "REQUEST_TIMED_OUT")


def test_the_default_is_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "logstore.audit")
    audit = Audit()
    audit("login", principal="User:ann")
    assert caplog.messages == ['{"event": "login", "principal": "User:ann"}']
    assert audit.state == ("", 1, 0, "")
