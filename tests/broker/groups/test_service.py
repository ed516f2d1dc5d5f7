"""The coordinator's shell over an engine by hand: elections, appends and reads end when a test says so."""

from __future__ import annotations

import errno
import logging

import pytest

from logstore.broker.groups.records import OffsetAndMetadata, encode_offset, encode_offset_key
from logstore.broker.groups.requests import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from logstore.broker.groups.served import OFFSETS_TOPIC, partition_for
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import Damage, DamagedLog, DamageKind, OutOfResources
from logstore.format.batch import encode_batch, encode_batch_of_pairs, encode_marker_batch
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.replication.effects import DamageFound
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Outcome, StoreError
from tests.broker.groups.service_world import (
    GROUP,
    HOME,
    PARTITIONS,
    T0,
    T1,
    FakeLog,
    World,
    error_of,
    run,
    settle,
)

DAMAGE = Damage(DamageKind.BAD_BATCH, "00000000000000000000.log", 7, 0, "checksum", 80)
DAMAGED = DamagedLog("a batch has rotted", [DAMAGE])


class TestElections:
    def test_nothing_is_served_before_the_topic_is_known(self) -> None:
        async def test(world: World) -> None:
            assert world.service.home_of(GROUP) is None
            assert world.committed() is ErrorCode.NOT_COORDINATOR

        run(test)

    def test_a_partition_is_served_once_its_log_is_read(self) -> None:
        async def test(world: World) -> None:
            world.engine.make_topic()
            world.engine.lead(0)
            await settle()
            assert world.service.home_of(GROUP) == TopicPartition(OFFSETS_TOPIC, HOME)
            assert world.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await world.engine.read()
            assert world.committed() == -1

        run(test)

    def test_the_next_leader_knows_what_was_committed(self) -> None:
        """It reads the log in as many pieces as it takes."""

        async def test(world: World) -> None:
            await world.serve()
            for offset in range(5):
                assert error_of(world.commit(offset)) is ErrorCode.NONE
            next_leader = World()
            next_leader.engine.logs = world.engine.logs
            await next_leader.serve()
            assert next_leader.committed() == 4
            next_leader.service.close()

        run(test)

    def test_the_log_is_read_when_its_end_as_of_the_election_is_committed(self) -> None:
        """What was told to somebody can then not be taken back."""

        async def test(world: World) -> None:
            log = world.engine.logs[HOME]
            batch = encode_batch_of_pairs([(encode_offset_key(GROUP, T0), None)], timestamp_ms=1)
            log.append(batch)
            log.append(batch, commit=False)
            world.engine.make_topic()
            world.engine.lead(3, HOME)
            await settle()
            assert not world.engine.reads
            log.high_watermark = log.log_end_offset
            world.engine.turn()
            await world.engine.read()
            assert world.committed() == -1

        run(test)

    def test_a_marker_has_its_partition_loaded_again(self) -> None:
        """Also while it is being loaded: that load ends before the marker."""

        async def test(world: World) -> None:
            log = world.engine.logs[HOME]
            value = encode_offset(OffsetAndMetadata(9))
            record = Record(0, 1, encode_offset_key(GROUP, T0), value)
            log.append(
                encode_batch(
                    [record], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
                )
            )
            world.engine.make_topic()
            world.engine.lead(0)
            await settle()
            marker = EndTransactionMarker(ControlType.COMMIT, 0)
            data = encode_marker_batch(marker, producer_id=7, producer_epoch=0, timestamp_ms=1)
            log.append(data, commit=False)
            for _ in range(2):
                world.service.load_again(HOME)
                assert world.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                log.high_watermark = log.log_end_offset
                world.engine.turn()
                await world.engine.read()
                assert world.committed() == 9
            world.engine.resign()
            world.service.load_again(HOME)
            assert world.committed() is ErrorCode.NOT_COORDINATOR, "another node has loaded it"

        run(test)

    def test_who_ceases_to_lead_says_so_and_forgets(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.commit(7)
            world.engine.resign()
            assert world.committed() is ErrorCode.NOT_COORDINATOR
            world.engine.lead(2, HOME)
            await world.engine.read()
            assert world.committed() == 7

        run(test)

    def test_a_leader_that_is_taken_back_in_its_epoch_reads_its_log_again(self) -> None:
        """Its session was over, and nobody else was elected."""

        async def test(world: World) -> None:
            await world.serve()
            world.engine.resign()
            world.engine.lead(0, HOME)
            assert world.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await world.engine.read()
            assert world.committed() == -1

        run(test)

    def test_a_leader_that_goes_on_in_a_new_epoch_need_not_read(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.engine.lead(1)
            assert world.committed() == -1
            assert not world.engine.reads

        run(test)

    def test_what_is_read_for_an_earlier_leadership_is_for_nobody(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.commit(1)
            world.engine.resign()
            world.engine.lead(1, HOME)
            world.commit(2)
            assert len(world.engine.reads) == 1
            world.engine.resign()
            world.engine.lead(1, HOME)
            await world.engine.read(all_of_it=False)
            assert world.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await world.engine.read()
            assert world.committed() == 1

        run(test)

    def test_a_log_that_cannot_be_read_leaves_its_groups_unserved_and_the_others_served(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def test(world: World) -> None:
            world.engine.logs[HOME].append(encode_batch_of_pairs([(b"\0\2\0\1g", b"\0\7")], timestamp_ms=1))
            await world.serve()
            assert world.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            other = next(each for each in "abcdef" if partition_for(each, PARTITIONS) != HOME)
            (answer,) = world.ask(DescribeGroupsRequest((other,)))
            assert isinstance(answer, DescribeGroupsResponse)
            assert answer.groups[0].error_code is ErrorCode.NONE

        with caplog.at_level(logging.ERROR):
            run(test)
        assert f"cannot load {OFFSETS_TOPIC}-{HOME}" in caplog.text

    @pytest.mark.parametrize("error", [DAMAGED, OutOfResources("no descriptors"), OSError(errno.EMFILE, "")])
    def test_a_log_that_is_damaged_or_lacks_resources_is_read_again(
        self, caplog: pytest.LogCaptureFixture, error: Exception
    ) -> None:
        """Damage is reported, and repaired from other replicas meanwhile; it is said once."""

        async def test(world: World) -> None:
            await world.serve()
            world.commit(1)
            world.engine.resign()
            world.engine.logs[HOME].errors = [error] * 3
            world.engine.lead(1, HOME)
            for _ in range(3):
                await world.engine.read(all_of_it=False)
                assert world.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await world.engine.read()
            assert world.committed() == 1
            where = TopicPartition(OFFSETS_TOPIC, HOME)
            expected = DamageFound(where, (DAMAGE,), ())
            assert world.engine.damages == ([expected] * 3 if error is DAMAGED else [])

        run(test)
        assert caplog.text.count(f"cannot load {OFFSETS_TOPIC}-{HOME} yet") == 1

    def test_a_log_that_failed_does_not_pass_for_a_short_one(self) -> None:
        """After a failed sync a log shows what is on the disk for sure, and that may be less."""

        async def test(world: World) -> None:
            await world.serve()
            world.commit(1)
            world.engine.resign()
            world.engine.lead(1, HOME)
            world.engine.logs[HOME].is_offline = True
            await world.engine.read()
            assert world.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

        run(test)


class TestTheTopic:
    def test_its_partitions_are_counted_in_the_store(self) -> None:
        """Metadata may tell of some of them first: a group would be looked for in the wrong one."""

        async def test(world: World) -> None:
            world.engine.make_topic()
            for number in range(1, PARTITIONS):
                del world.engine.metadata.partitions[TopicPartition(OFFSETS_TOPIC, number)]
            await settle()
            assert world.service.home_of(GROUP) == TopicPartition(OFFSETS_TOPIC, HOME)

        run(test)

    @pytest.mark.parametrize("error", [StoreError.CONNECTION_LOSS, StoreError.NO_NODE])
    def test_a_store_that_does_not_tell_yet_is_asked_again(
        self, monkeypatch: pytest.MonkeyPatch, error: StoreError
    ) -> None:
        """A server of ZooKeeper may lag behind the one that the controller wrote to."""
        monkeypatch.setattr("logstore.broker.groups.service._STORE_AGAIN_S", 0.0)

        async def test(world: World) -> None:
            world.engine.make_topic()
            path = layout.topic_path(OFFSETS_TOPIC)
            told = world.engine.stored[path]
            world.engine.stored[path] = Outcome(error)
            await settle()
            assert world.service.home_of(GROUP) is None
            world.engine.stored[path] = told
            await settle()
            assert world.service.home_of(GROUP) is not None

        run(test)

    def test_a_topic_that_is_made_anew_begins_with_nothing(self) -> None:
        """Its epochs begin anew, and it may have another number of partitions."""

        async def test(world: World) -> None:
            await world.serve()
            world.engine.lead(5)
            world.commit(7)
            for number in range(PARTITIONS):
                world.engine.resign(number)
            world.engine.metadata.partitions.clear()
            assert world.service.home_of(GROUP) is None, "it is to be made"
            world.engine.logs = [FakeLog() for _ in range(PARTITIONS)]
            world.engine.make_topic("id-2", 1)
            world.engine.lead(0, 0)
            await world.engine.read()
            assert world.service.home_of(GROUP) == TopicPartition(OFFSETS_TOPIC, 0)
            assert world.committed() == -1

        run(test)

    def test_offsets_of_a_topic_that_is_deleted_go(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.commit(7)
            world.commit(8, T1)
            world.engine.delete(T0)
            assert (world.committed(), world.committed(T1)) == (-1, 8)

        run(test)

    def test_offsets_that_wait_while_their_topic_is_deleted_are_refused(self) -> None:
        """The next topic of that name would begin with them."""

        async def test(world: World) -> None:
            await world.serve()
            world.engine.is_in_doubt = True
            answers = world.commit(7)
            world.engine.delete(T0)
            world.engine.is_in_doubt = False
            world.engine.line.pop()()
            (answer,) = answers
            assert isinstance(answer, OffsetCommitResponse)
            assert answer.partitions == {}, "the handler says that the partition is unknown"
            assert world.committed() == -1

        run(test)

    def test_a_topic_that_a_thousand_groups_have_read_may_go(self) -> None:
        """Appends that end at once do not pile up on each other."""

        async def test(world: World) -> None:
            await world.serve()
            values = {T0: OffsetCommitPartition(committed_offset=5)}
            for number in range(1000):
                world.ask(OffsetCommitRequest(group_id=f"g{number}", partitions=values))
            assert world.service.coordinator.committed_offsets == 1000
            world.engine.delete(T0)
            assert world.service.coordinator.committed_offsets == 0

        run(test)

    def test_offsets_of_a_topic_that_is_deleted_under_a_coordinator_that_fails_go(self) -> None:
        """The next coordinator knew of the deletion before it led; a new topic keeps its own."""

        async def test(world: World) -> None:
            world.engine.make_topic()
            for at in (T0, T1):
                key, value = encode_offset_key(GROUP, at), encode_offset(OffsetAndMetadata(7))
                world.engine.logs[HOME].append(encode_batch_of_pairs([(key, value)], timestamp_ms=1))
            world.engine.delete(T0, T1)
            world.engine.metadata.partitions[T1] = object()
            world.engine.lead(0)
            await world.engine.read()
            assert (world.committed(), world.committed(T1)) == (-1, 7)
            assert world.engine.logs[HOME].keys()[2:] == [encode_offset_key(GROUP, T0)], "its tombstone"

        run(test)

    def test_offsets_of_a_topic_that_is_deleted_while_the_log_is_read_go(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.commit(7)
            world.commit(8, T1)
            world.engine.resign()
            world.engine.lead(1, HOME)
            world.engine.delete(T0)
            world.engine.delete(TopicPartition("other", 0))
            await world.engine.read()
            assert (world.committed(), world.committed(T1)) == (-1, 8)

        run(test)
