"""Who leads a partition. Pure: the state as persisted, the brokers that live, the verdict.

The order of the assignment decides, never the order of the ISR. The first half are Kafka's
strategies, one function each. The second half, `next_state`, is the one decision behind every
failure: given who lives *now*, what should the state node say? It is asked again after any doubt
and answers None when nothing has to change, so no event needs to be remembered.

An ISR member can be trusted with leadership in this order:

    intact      alive, and the very incarnation that the state node names
    restarted   alive in a later incarnation that has not lost what it had acknowledged
    dead        not alive; may hold everything
    lost        alive in a later incarnation that cannot say that

While an intact member exists, all others leave the ISR: a restarted one must catch up before it
counts, whatever it kept. Without one, the restarted members lead (they hold all that was committed,
and a new leader epoch fences their former selves). A lost member is never elected unless unclean
election is allowed; it is remembered as lost in the state node, for its next, clean, restart does
not bring anything back. The ISR is never emptied: it names those who may have the committed records.

Besides the ISR, those may lead whom the state node remembers as `eligible`, by the same standing (intact or
restarted): they too hold all that was committed. They come second, for an ISR member may have more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from logstore.disk.marks import mark
from logstore.replication.controller.eligible import with_eligible
from logstore.replication.durability import Durability
from logstore.replication.messages import NO_LEADER
from logstore.replication.metastore.layout import LOST_BROKER_EPOCH, UNKNOWN_BROKER_EPOCH, LeaderAndIsr


class Elected(NamedTuple):
    leader: int
    unclean: bool = False


def offline_leader(
    replicas: Collection[int], isr: Collection[int], live: Collection[int], *, unclean_enabled: bool = False
) -> Elected | None:
    """The first replica that lives and is in sync; unclean: the first that lives at all."""
    for replica in replicas:
        if replica in live and replica in isr:
            return Elected(replica)
    if unclean_enabled:
        for replica in replicas:
            if replica in live:
                return Elected(replica, unclean=True)
    return None


def reassigned_leader(target: Collection[int], isr: Collection[int], live: Collection[int]) -> int | None:
    """The first of the target's replicas that lives and is in sync."""
    return next((replica for replica in target if replica in live and replica in isr), None)


def preferred_leader(replicas: Collection[int], isr: Collection[int], live: Collection[int]) -> int | None:
    """The first replica of the assignment, if it lives and is in sync; nobody else."""
    preferred = next(iter(replicas))
    return preferred if preferred in live and preferred in isr else None


def shutdown_leader(
    replicas: Collection[int], isr: Collection[int], live: Collection[int], shutting_down: Collection[int]
) -> int | None:
    """The first replica that lives, is in sync and stays. `live` includes those shutting down."""
    return next(
        (
            replica
            for replica in replicas
            if replica in live and replica in isr and replica not in shutting_down
        ),
        None,
    )


# --- the state after a change of brokers ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A live broker process; `clean` says that it lost nothing acknowledged when it last stopped.

    `continues` are its own former epochs: what it held as one of them it still holds.
    """

    epoch: int
    clean: bool
    continues: tuple[int, ...] = ()


class Standing(Enum):
    INTACT = "intact"
    RESTARTED = "restarted"
    DEAD = "dead"
    LOST = "lost"


def standing(recorded_epoch: int, incarnation: Incarnation | None) -> Standing:
    """What an ISR member is worth, from the incarnation on record and the one that lives."""
    if incarnation is None:
        return Standing.DEAD
    if recorded_epoch == LOST_BROKER_EPOCH:
        return Standing.LOST
    if recorded_epoch in (UNKNOWN_BROKER_EPOCH, incarnation.epoch):
        return Standing.INTACT
    has_all = incarnation.clean or recorded_epoch in incarnation.continues
    return Standing.RESTARTED if has_all else Standing.LOST


def first_state(
    replicas: tuple[int, ...],
    live: Mapping[int, Incarnation],
    controller_epoch: int,
    durability: Durability = Durability.REPLICATED,
    min_insync: int = 0,
) -> LeaderAndIsr | None:
    """The state of a partition that never had one: its live replicas, the first of them leading."""
    isr = tuple(replica for replica in replicas if replica in live)
    if not isr:
        mark("election: no replica of a new partition lives")
        return None
    if isr != replicas:
        mark("election: a new partition begins without some of its replicas")
    return LeaderAndIsr(
        leader=isr[0],
        leader_epoch=0,
        isr=isr,
        controller_epoch=controller_epoch,
        isr_broker_epochs=tuple(live[replica].epoch for replica in isr),
        durability=durability,
        all_synced=durability is Durability.SYNCED,
        min_insync=min_insync,
    )


def at_level(state: LeaderAndIsr, durability: Durability, controller_epoch: int) -> LeaderAndIsr:
    """The same state at another level. What was acknowledged so far need not be on disk: no promise yet."""
    if durability is state.durability:
        return state
    mark("election: a partition is to be of another level")
    return replace(state, durability=durability, all_synced=False, controller_epoch=controller_epoch)


def next_state(
    state: LeaderAndIsr,
    replicas: tuple[int, ...],
    live: Mapping[int, Incarnation],
    controller_epoch: int,
    *,
    shutting_down: Collection[int] = (),
    failed: Collection[int] = (),
    refusing: Collection[int] = (),
    unclean_enabled: bool = False,
) -> LeaderAndIsr | None:
    """What the state node must say now that just these brokers live; None if it says so already.

    Every change of leader or ISR takes a new leader epoch: it fences the leader that does not know of it. An
    unclean election takes a replica that is not known to have lost records, if one lives. Whoever is
    `shutting_down` keeps what it leads until somebody else can, and is given nothing that it could refuse.
    `failed` are brokers that live while their replica cannot be used: nobody knows what will be left of it;
    `refusing` have said so last, and may still count as live here: none of them is elected from outside.
    """
    recorded = dict(state.eligible) | dict(zip(state.isr, state.isr_broker_epochs, strict=True))
    standings = {member: standing(epoch, live.get(member)) for member, epoch in recorded.items()}
    lost = [member for member in standings if standings[member] is Standing.LOST]
    staying = [each for each in live if each not in shutting_down]
    # Who is elected and refuses has pushed all others out of the ISR, those too that may have everything.
    able = _without(staying, refusing)

    def members(wanted: Standing) -> tuple[int, ...]:
        return tuple(member for member in state.isr if standings[member] is wanted)

    recovering = False
    if intact := members(Standing.INTACT):
        isr = intact
        # Kafka records no incarnations: whoever lives when we first look is the one that counts.
        recorded.update({member: live[member].epoch for member in isr})
        leader = state.leader if state.leader in isr else _first(replicas, isr, shutting_down)
        if leader == state.leader and isr != state.isr:
            mark("election: a follower is gone, the leader stays")
        elif state.leader == NO_LEADER:
            mark("election: a member in sync is back, and leads what nobody led")
        recovering = state.recovering and leader == state.leader
    elif restarted := members(Standing.RESTARTED):
        mark("election: all that live were restarted and kept everything")
        isr, leader = restarted, _first(replicas, restarted, shutting_down)
        recorded.update({member: live[member].epoch for member in isr})
    elif eligible := tuple(
        each for each in replicas if each in standings and each in staying and each not in lost
    ):
        mark("election: outside an ISR that was too small to commit")
        isr, leader = eligible, eligible[0]
        recorded.update({member: live[member].epoch for member in isr})
    elif unclean_enabled and (
        elected := offline_leader(replicas, (), _without(able, lost), unclean_enabled=True)
        or offline_leader(replicas, (), able, unclean_enabled=True)
    ):
        mark("election: outside the ISR, where that is allowed")
        leader, isr, recovering = elected.leader, (elected.leader,), True
        recorded[leader] = live[leader].epoch
    else:
        # Dead members may have kept everything: they alone stay. If all came back with a loss,
        # they stay too, marked, because an ISR is never empty.
        mark("election: nobody may lead")
        if not members(Standing.DEAD):
            mark("election: every member came back with a loss")
        isr, leader = members(Standing.DEAD) or state.isr, NO_LEADER
        recorded.update(dict.fromkeys(members(Standing.LOST), LOST_BROKER_EPOCH))
    decided = with_eligible(
        state,
        in_new_epoch(state, leader, isr, recorded, controller_epoch, recovering=recovering),
        replicas,
        lost=(*lost, *failed),
    )
    if (leader, isr, decided.isr_broker_epochs) != (state.leader, state.isr, state.isr_broker_epochs):
        return decided
    if decided.eligible != state.eligible:
        mark("election: somebody eligible came back with a loss")
        return replace(state, controller_epoch=controller_epoch, eligible=decided.eligible)
    return None


def preferred_state(
    state: LeaderAndIsr,
    replicas: tuple[int, ...],
    live: Mapping[int, Incarnation],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """The preferred replica leads, the ISR stays; None if it may not: dead, out of sync, or a successor of
    the member on record. `live` are those that stay: nobody goes home to a broker that shuts down."""
    leader = preferred_leader(replicas, _intact(state, live), live)
    if leader is None:
        return None
    recorded = dict(zip(state.isr, state.isr_broker_epochs, strict=True))
    return in_new_epoch(state, leader, state.isr, recorded, controller_epoch)


def state_after_shutdown(
    state: LeaderAndIsr,
    replicas: tuple[int, ...],
    live: Mapping[int, Incarnation],
    shutting_down: Collection[int],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """Those who shut down neither lead nor count; None if so it is, or if nobody could lead instead.

    `live` includes them. The last member that could lead stays what it is: the records outweigh its wish.
    """
    isr = tuple(member for member in state.isr if member not in shutting_down)
    if isr == state.isr or state.leader == NO_LEADER:
        return None
    leader: int | None = state.leader
    if leader in shutting_down:
        leader = shutdown_leader(replicas, _intact(state, live), live, shutting_down)
    if leader is None:
        return None
    recorded = dict(zip(state.isr, state.isr_broker_epochs, strict=True))
    return with_eligible(state, in_new_epoch(state, leader, isr, recorded, controller_epoch), replicas)


def _without(brokers: Collection[int], others: Collection[int]) -> list[int]:
    return [each for each in brokers if each not in others]


def _intact(state: LeaderAndIsr, live: Mapping[int, Incarnation]) -> tuple[int, ...]:
    recorded = zip(state.isr, state.isr_broker_epochs, strict=True)
    return tuple(member for member, epoch in recorded if standing(epoch, live.get(member)) is Standing.INTACT)


def in_new_epoch(
    state: LeaderAndIsr,
    leader: int,
    isr: tuple[int, ...],
    recorded: Mapping[int, int],
    controller_epoch: int,
    *,
    recovering: bool = False,
) -> LeaderAndIsr:
    """`state` in its next epoch, led by `leader` with this ISR; `recorded` names its incarnations."""
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        controller_epoch=controller_epoch,
        isr_broker_epochs=tuple(recorded[member] for member in isr),
        recovering=recovering,
        # Whoever leads from outside the ISR may not have flushed all that it has.
        all_synced=state.all_synced and not recovering,
    )


def _first(replicas: tuple[int, ...], candidates: tuple[int, ...], shutting_down: Collection[int]) -> int:
    # An ISR member outside the assignment is possible only half-way through a reassignment. One that shuts
    # down leads only if it is the last.
    staying = tuple(each for each in candidates if each not in shutting_down) or candidates
    return next((replica for replica in replicas if replica in staying), staying[0])
