"""More failure schedules of ISR, high watermark and acks.

Transcripts in the notation of `test_schedules.py`. What needs a real controller runs in an
`InProcessCluster` instead.
"""

from __future__ import annotations

from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.replication.config import NodeConfig
from logstore.replication.driver import InProcessCluster, three_nodes
from logstore.replication.effects import Response
from logstore.replication.in_process import Envelope
from logstore.replication.isr import CommittedIsr, PendingShrink
from logstore.replication.messages import (
    NO_LEADER,
    AlterPartitionRequest,
    AlterPartitionResponse,
    NewTopic,
)
from logstore.replication.metastore.layout import LeaderAndIsr, parse_state, partition_state_path
from logstore.replication.metastore.operations import Get
from logstore.replication.partition import ACKS_ALL
from logstore.testing.stage import Stage
from tests.replication.test_driver import BASE, TP, cluster, is_whole, write


def proposed(stage: Stage) -> tuple[int, ...]:
    """The ISR on its way to the controller."""
    message = stage.proposal()
    assert message is not None
    assert isinstance(message.body, AlterPartitionRequest)
    (proposal,) = message.body.partitions.values()
    return proposal.new_isr


def stored(made: InProcessCluster) -> LeaderAndIsr:
    session_id = made.store.open_session(60_000, made.now_ms)
    outcome, _ = made.store.call(session_id, Get(partition_state_path(TP)), made.now_ms)
    return parse_state(outcome.data)


def test_s8_without_unclean_election_the_partition_waits_for_its_last_member() -> None:
    """B lacks acknowledged records: it restarts twice and never leads. One epoch for -1, one for A."""
    made = InProcessCluster(three_nodes(base=BASE)[:2], disk_of=lambda node_id: MemoryDisk())
    made.start()
    made.create_topic(NewTopic("t", assignment=((0, 1),)))
    write(made, b"both")
    made.stop_node(1)
    made.advance(10_000)
    write(made, b"A alone")
    epoch = stored(made).leader_epoch
    made.stop_node(0)
    for _ in range(2):
        made.start_node(1)
        made.advance(20_000)
        assert (stored(made).leader, stored(made).isr) == (NO_LEADER, (0,))
        assert stored(made).leader_epoch == epoch + 1
        made.stop_node(1)
    made.start_node(1)
    made.start_node(0)
    made.advance(20_000)
    assert stored(made).leader == 0
    assert stored(made).leader_epoch == epoch + 2
    assert stored(made).isr == (0, 1)


def test_s25_two_writers_of_one_isr() -> None:
    """A wants B out, the controller has just taken C out. A's write is refused; it counts all."""
    stage = Stage("ABC", first_epoch=1)
    stage.elect("A", isr="ABC")
    stage.append("A", 2)
    stage.replicate("B", "C")
    stage.append("A")
    stage.replicate("B")
    stage.advance(11_000)
    assert proposed(stage) == (0, 1)
    stage.elect("A", isr="AC", to="")
    stage.persist_isr()
    assert isinstance(stage.partition("A").isr, PendingShrink), "the outcome is not known to it"
    stage.tell("A")
    isr = stage.partition("A").isr
    assert isinstance(isr, CommittedIsr)
    assert isr.committed == {0, 2}
    assert "B" not in "".join(stage.names[member] for member in isr.maximal)
    stage.check(
        """
        A leads e1, ISR ABC                 A = · | hw 0; B = · | hw 0; C = · | hw 0
        A takes 2, acks=1                   A = 1 1 | hw 0; B = · | hw 0; C = · | hw 0
        A takes 1, acks=1                   A = 1 1 1 | hw 2; B = 1 1 | hw 2; C = 1 1 | hw 2
        11000 ms pass                       A = 1 1 1 | hw 2; B = 1 1 1 | hw 2; C = 1 1 | hw 2
        A leads e2, ISR AC, told nobody     A = 1 1 1 | hw 2; B = 1 1 1 | hw 2; C = 1 1 | hw 2
        ISR AB FENCED_LEADER_EPOCH          A = 1 1 1 | hw 2; B = 1 1 1 | hw 2; C = 1 1 | hw 2
        A hears of e2                       A = 1 1 1 | hw 2; B = 1 1 1 | hw 2; C = 1 1 | hw 2
        """
    )


def test_s26_a_written_isr_whose_answer_was_lost() -> None:
    """KAFKA-2729: the same proposal again, over a state that says so already, is a success."""
    made = cluster()
    write(made, b"x")
    lost: list[Envelope] = []

    def lose_the_first(envelope: Envelope) -> bool:
        event = envelope.event
        is_answer = isinstance(event, Response) and isinstance(event.body, AlterPartitionResponse)
        if is_answer and not lost:
            lost.append(envelope)
            return True
        return False

    made.isolate(2)
    made.advance(10_000)
    write(made, b"y")
    made.intercept = lose_the_first
    made.heal()
    assert made.run_until(lambda: bool(lost), 20_000)
    assert set(stored(made).isr) == {0, 1, 2}
    assert made.nodes[0].replicas.partitions[TP].isr.committed == {0, 1}, "it has not heard"
    assert made.run_until(lambda: is_whole(made), 20_000), "the same once more is a success"
    made.isolate(1)
    made.advance(10_000)
    made.heal()
    assert made.run_until(lambda: is_whole(made), 60_000), "later changes go through as well"


def test_s27_a_controller_that_is_behind_says_so() -> None:
    """NOT_CONTROLLER is no refusal of the proposal: the same one goes to whoever is the controller now."""
    stage = Stage("AB", first_epoch=7)
    stage.elect("A", isr="AB")
    stage.append("A")
    stage.advance(11_000)
    before = stage.partition("A").isr
    assert isinstance(before, PendingShrink)
    stage.refuse_isr(ErrorCode.NOT_CONTROLLER)
    assert stage.partition("A").isr is before
    stage.advance(100)
    assert proposed(stage) == (0,)
    stage.persist_isr()
    stage.check(
        """
        A leads e7, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 1, acks=1                   A = 7 | hw 0; B = · | hw 0
        11000 ms pass                       A = 7 | hw 0; B = · | hw 0
        ISR refused: NOT_CONTROLLER         A = 7 | hw 0; B = · | hw 0
        100 ms pass                         A = 7 | hw 0; B = · | hw 0
        ISR A stored                        A = 7 | hw 1; B = · | hw 0
        """
    )


def test_s32_a_follower_that_returns_under_load() -> None:
    """ISR {A}, and A never pauses. Once C keeps up, the high watermark waits for it, and it joins."""
    stage = Stage("AC")
    stage.elect("A", isr="A")
    stage.append("A", 2)
    stage.fetch("C")
    stage.append("A")
    stage.fetch("C")
    stage.append("A")
    stage.fetch("C")
    assert proposed(stage) == (0, 1)
    stage.persist_isr()
    stage.check(
        """
        A leads e0, ISR A                   A = · | hw 0; C = · | hw 0
        A takes 2, acks=1                   A = 0 0 | hw 2; C = · | hw 0
        C fetches at 0                      A = 0 0 | hw 2; C = 0 0 | hw 2
        A takes 1, acks=1                   A = 0 0 0 | hw 3; C = 0 0 | hw 2
        C fetches at 2 (e0)                 A = 0 0 0 | hw 3; C = 0 0 0 | hw 3
        A takes 1, acks=1                   A = 0x4 | hw 3; C = 0 0 0 | hw 3
        C fetches at 3 (e0)                 A = 0x4 | hw 3; C = 0x4 | hw 3
        ISR AC stored                       A = 0x4 | hw 3; C = 0x4 | hw 3
        """
    )


def test_s32_but_not_for_one_that_is_shutting_down() -> None:
    """KAFKA-15021: it will stop fetching, and the watermark would stand still for the whole lag bound."""
    stage = Stage("AC")
    stage.elect("A", isr="A")
    stage.append("A", 2)
    stage.fetch("C")
    stage.append("A")
    stage.fetch("C")
    stage.tell_who_lives(alive="A")
    stage.append("A")
    stage.fetch("C")
    assert stage.proposal() is None
    stage.check(
        """
        A leads e0, ISR A                   A = · | hw 0; C = · | hw 0
        A takes 2, acks=1                   A = 0 0 | hw 2; C = · | hw 0
        C fetches at 0                      A = 0 0 | hw 2; C = 0 0 | hw 2
        A takes 1, acks=1                   A = 0 0 0 | hw 3; C = 0 0 | hw 2
        C fetches at 2 (e0)                 A = 0 0 0 | hw 3; C = 0 0 0 | hw 3
        A takes 1, acks=1                   A = 0x4 | hw 4; C = 0 0 0 | hw 3
        C fetches at 3 (e0)                 A = 0x4 | hw 4; C = 0x4 | hw 4
        """
    )


def test_s33_a_follower_that_fetches_and_never_arrives() -> None:
    """KIP-16: what counts is the leader's end, not that it asks. It leaves after the lag bound."""
    config = NodeConfig(
        node_id=0, replica_fetch_wait_max_ms=0, replica_lag_time_max_ms=10_000, replica_fetch_max_bytes=1
    )
    stage = Stage("AB", config=config)
    stage.elect("A", isr="AB")
    for second in range(16):
        assert stage.proposal() is None, f"out after {second} s"
        stage.append("A", 3)
        stage.fetch("B")
        stage.advance(1000)
        if stage.proposal() is not None:
            break
    assert 10 <= second < 16, "lag bound, and half of it until the next check"
    assert proposed(stage) == (0,)


def test_s34_an_idle_topic_keeps_its_isr() -> None:
    """KAFKA-7152: B is silent for ten times the bound, and lacks nothing."""
    stage = Stage("AB")
    stage.elect("A", isr="AB")
    stage.append("A", 2)
    stage.replicate("B")
    for _ in range(20):
        stage.advance(5_000)
    assert stage.proposal() is None
    stage.append("A")
    stage.advance(5_000)
    assert proposed(stage) == (0,), "with one more record it does"


def below_min_insync(stage: Stage) -> None:
    """S35: acks=all waits for B, B stalls, and the ISR shrinks below min.insync.replicas."""
    stage.elect("A", isr="AB")
    stage.append("A", 2)
    stage.replicate("B")
    stage.append("A", acks=ACKS_ALL)
    stage.advance(11_000)
    stage.persist_isr()


def test_s35_a_write_that_waits_while_the_isr_drops_below_its_minimum() -> None:
    """The watermark stops at the wall, the waiting write times out, the next one is refused."""
    stage = Stage("AB", min_insync=2)
    below_min_insync(stage)
    (waiting,) = stage.promised.values()
    assert waiting.error is None
    stage.advance(20_000)
    assert waiting.error is ErrorCode.REQUEST_TIMED_OUT
    assert stage.append("A", acks=ACKS_ALL).error is ErrorCode.NOT_ENOUGH_REPLICAS
    stage.check(
        """
        A leads e0, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 2, acks=1                   A = 0 0 | hw 0; B = · | hw 0
        A takes 1, acks=all                 A = 0 0 0 | hw 2; B = 0 0 | hw 2
        11000 ms pass                       A = 0 0 0 | hw 2; B = 0 0 | hw 2
        ISR A stored                        A = 0 0 0 | hw 2; B = 0 0 | hw 2
        20000 ms pass                       A = 0 0 0 | hw 2; B = 0 0 | hw 2
        A takes 1, acks=all                 A = 0 0 0 | hw 2; B = 0 0 | hw 2
        """
    )


def test_s36_acks_1_goes_on_below_the_wall_unseen() -> None:
    """Answered, and invisible to consumers until there are two again."""
    stage = Stage("AB", min_insync=2)
    below_min_insync(stage)
    assert stage.append("A", acks=1).error is ErrorCode.NONE
    assert stage.consume("A", 2).records == b""
    for _ in range(3):
        stage.fetch("B")
    stage.persist_isr()
    assert len(stage.consume("A", 2).records) > 0
    stage.check(
        """
        A leads e0, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 2, acks=1                   A = 0 0 | hw 0; B = · | hw 0
        A takes 1, acks=all                 A = 0 0 0 | hw 2; B = 0 0 | hw 2
        11000 ms pass                       A = 0 0 0 | hw 2; B = 0 0 | hw 2
        ISR A stored                        A = 0 0 0 | hw 2; B = 0 0 | hw 2
        A takes 1, acks=1                   A = 0x4 | hw 2; B = 0 0 | hw 2
        B fetches at 2 (e0)                 A = 0x4 | hw 2; B = 0x4 | hw 2
        B fetches at 4 (e0)                 A = 0x4 | hw 2; B = 0x4 | hw 2
        B fetches at 4 (e0)                 A = 0x4 | hw 2; B = 0x4 | hw 2
        ISR AB stored                       A = 0x4 | hw 4; B = 0x4 | hw 2
        """
    )
