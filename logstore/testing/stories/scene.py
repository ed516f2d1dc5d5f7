"""What a story plays on: a stage with named records, and the pictures that are taken of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from logstore.disk.errors import ErrorCode
from logstore.replication.controller import election
from logstore.replication.messages import NO_LEADER
from logstore.replication.partition import ACKS_ALL
from logstore.testing.stage import TP, Pending, Stage
from logstore.testing.stories.board import Board
from logstore.testing.stories.drawing import Box, Picture, Row, diverging

_ROUNDS = 3


class Step(NamedTuple):
    """What was done, and the partition after it."""

    text: str
    picture: Picture | Board


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a story: acknowledged records that the last leader lacks, and offsets that differ."""

    lost_acks_all: tuple[str, ...] = ()
    """Acknowledged with acks=all: a broken promise."""
    lost_acks_1: tuple[str, ...] = ()
    """Acknowledged with acks=1, which promises the leader's copy only."""
    unanswered: tuple[str, ...] = ()
    """Records sent with acks=all whose producer still waits."""
    refused: tuple[str, ...] = ()
    """Records that the leader refused: their producers know."""
    diverging_offsets: tuple[int, ...] = ()
    """Offsets at which the logs of two replicas differ."""
    is_led: bool = True
    idle: tuple[str, ...] = ()
    """Live brokers that lead nothing, though partitions prefer them."""


class Scene:
    """A stage, the records sent on it, and the steps shown so far."""

    def __init__(self, stage: Stage, *, unclean: bool = False, acks: int = ACKS_ALL) -> None:
        """`unclean` is `unclean.leader.election.enable`, `acks` what clients of `send` ask for by default."""
        self.stage = stage
        self.unclean = unclean
        self.acks = acks
        self.steps: list[Step] = []
        self._sent: list[tuple[str, int, Pending]] = []

    def show(self, text: str) -> None:
        """Take a picture, under the sentence `text`."""
        self.steps.append(Step(text, picture_of(self.stage)))

    def send(self, name: str, *values: str, acks: int | None = None) -> None:
        """Write records as a client, each in its own batch."""
        for value in values:
            wanted = self.acks if acks is None else acks
            pending = self.stage.append(name, acks=wanted, value=value.encode())
            self._sent.append((value, wanted, pending))

    def forget(self) -> None:
        """Count no record sent so far as lost: their topic was deleted on purpose."""
        self._sent.clear()

    def send_again(self, name: str) -> None:
        """Let every producer without an acknowledgement send its record again, as one that retries does."""
        again = [sent for sent in self._sent if sent[2].error is not ErrorCode.NONE]
        self._sent = [sent for sent in self._sent if sent not in again]
        for value, acks, _ in again:
            self.send(name, value, acks=acks)

    def follow(self, *names: str) -> None:
        """Run several rounds of these replicas (by default: all that run) with their leaders."""
        for _ in range(_ROUNDS):
            for name in names or self.stage.running():
                if self.stage.is_asking(name):
                    self.stage.fetch(name)

    def settle_isr(self) -> None:
        """Let the store persist what leaders propose, and tell them so."""
        while self.stage.proposal() is not None:
            self.stage.persist_isr()

    def elect(self, *, to: str | None = None) -> None:
        """Let the controller's rule elect among the live replicas (`OfflinePartitionLeaderSelector`).

        All that run are told, or those named by `to`. Without a candidate the partition has no leader, and
        the ISR stays as it is.
        """
        stage = self.stage
        live = [stage.number(name) for name in stage.running()]
        state = stage.state
        found = election.offline_leader(state.replicas, state.isr, live, unclean_enabled=self.unclean)
        isr = [member for member in state.isr if member in live]
        if found is None:
            stage.elect(None, isr="".join(stage.names[member] for member in state.isr))
            return
        members = [found.leader] if found.unclean else isr
        stage.elect(stage.names[found.leader], isr="".join(stage.names[member] for member in members), to=to)

    def hear(self, name: str) -> None:
        """Let the controller tell a new broker of the state, after an election if nobody leads."""
        if self.stage.state.leader == NO_LEADER:
            self.elect()
        else:
            self.stage.tell(name)

    def elect_preferred(self) -> None:
        """Let the preferred replica lead, if the controller's rule finds it fit."""
        stage = self.stage
        live = [stage.number(name) for name in stage.running()]
        leader = election.preferred_leader(stage.state.replicas, stage.state.isr, live)
        if leader is not None and leader != stage.state.leader:
            members = sorted({*stage.state.isr, leader})
            stage.elect(stage.names[leader], isr="".join(stage.names[member] for member in members))

    def outcome(self) -> Outcome:
        """Compare what was acknowledged with what the stored leader's log holds."""
        stage = self.stage
        picture = self.steps[-1].picture
        assert isinstance(picture, Picture), "taken by `show`"
        leader = stage.state.leader
        is_led = leader != NO_LEADER and stage.names[leader] in stage.running()
        held = set(stage.values(stage.names[leader])) if is_led else None

        def lost(wanted: int) -> tuple[str, ...]:
            return tuple(
                value
                for value, acks, pending in self._sent
                if acks == wanted
                and pending.error is ErrorCode.NONE
                and held is not None
                and value.encode() not in held
            )

        shown = [row for row in picture.rows if row.role != "down"]
        return Outcome(
            lost_acks_all=lost(ACKS_ALL),
            lost_acks_1=lost(1),
            unanswered=tuple(value for value, _, pending in self._sent if pending.error is None),
            refused=tuple(value for value, _, pending in self._sent if pending.error),
            diverging_offsets=diverging(shown),
            is_led=is_led,
        )


def picture_of(stage: Stage) -> Picture:
    """Return the stage's state: logs, high watermarks and epochs as the engine has them."""
    state = stage.state
    names = stage.names
    return Picture(
        leader=names[state.leader] if state.leader != NO_LEADER else "",
        leader_epoch=state.leader_epoch,
        isr=tuple(names[member] for member in state.isr),
        rows=tuple(_row(stage, name) for name in names),
    )


def _row(stage: Stage, name: str) -> Row:
    number = stage.number(name)
    is_in_sync = number in stage.state.isr
    if name not in stage.running():
        return Row(name, "down", is_in_sync=is_in_sync)
    log = stage.find_log(name)
    if log is None:
        return Row(name, "waits", is_in_sync=is_in_sync)
    partition = stage.manager(name).partitions.get(TP)
    role, epoch = "waits", -1
    if partition is not None:
        role = "leads" if partition.is_leader else "follows"
        epoch = partition.leader_epoch
    epoch_of = log.partition.epoch_for_offset
    return Row(
        name,
        role,
        epoch=epoch,
        is_in_sync=is_in_sync,
        start=log.log_start_offset,
        boxes=tuple(
            Box((record.value or b"").decode(), epoch_of(offset))
            for offset, record in enumerate(log.read(), log.log_start_offset)
        ),
        high_watermark=log.partition.high_watermark,
        epochs=tuple((entry.epoch, entry.start_offset) for entry in log.partition.epochs),
    )
