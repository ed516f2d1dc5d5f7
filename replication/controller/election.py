"""Choose a partition's leader and the electable replicas. Pure: from persisted state and live brokers.

The order of the assignment decides, never the order of the ISR. `next_state` is the one decision for every
failure: it returns the content of the state node for the brokers that are alive *now*, or None if nothing
has to change. It can be called again at any time, so no event needs to be stored.

ISR members are trusted with leadership in this order:

    intact      alive, and the same incarnation that the state node names
    restarted   alive in a later incarnation that kept everything it had acknowledged
    dead        not alive; may hold everything
    lost        alive in a later incarnation that may have lost acknowledged records

While an intact member exists, all others leave the ISR: a restarted one must catch up before it counts,
whatever it kept. Without one, the restarted members lead: they hold all that was committed, and a new leader
epoch fences their former incarnations. A lost member is elected only if unclean election is allowed. The
state node remembers it as lost, because its next, clean, restart brings nothing back. The ISR is never
emptied: it names the replicas that may have the committed records.

**Eligible replicas** may lead too, after the ISR and by the same standing (after KIP-966). They left an ISR
that was too small to commit:

    ISR {A,B,C} ──shrinks──▶ {A}, eligible B, C      the high watermark stands: 1 of 2 is in sync
                 ──A is lost──▶ {B,C}, led by B      nothing that was committed is lost

While fewer than `min_insync` replicas are in the ISR, the high watermark does not move. So a replica that was
a member when that began holds, as the recorded incarnation, all that is committed. The state node keeps
these replicas next to the ISR, and `min_insync` itself: a leader goes by the number in the state that it acts
on. With a smaller one its high watermark could pass records that an eligible replica lacks.

Every write of a state node passes through `with_eligible` (or leaves ISR and `min_insync` unchanged), so that
ISR, number and eligible replicas change in one conditional write:

* An ISR that is large enough clears them, before its leader can learn that it may commit again.
* A smaller `min_insync` clears them too, before any leader learns of it.
* A replica that leaves an ISR that stays large enough is not eligible: the watermark moves on without it.
* While a smaller ISR is only proposed, the watermark waits for the leaving members. A leader waits for a
  member that the controller removed until one message carries both the removal and the smaller ISR.
* An election outside both clears them: from then on the new leader's log is what is committed.

A node without these fields, as Kafka writes it, has no eligible replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from logstore.disk.marks import mark
from logstore.replication.controller.assignment import without
from logstore.replication.durability import Durability
from logstore.replication.messages import NO_LEADER
from logstore.replication.metastore.layout import (
    LOST_BROKER_EPOCH,
    UNKNOWN_BROKER_EPOCH,
    Eligible,
    LeaderAndIsr,
)

# --- Kafka's strategies -----------------------------------------------------------------------


class Elected(NamedTuple):
    leader: int
    unclean: bool = False


def offline_leader(
    replicas: Collection[int], isr: Collection[int], live: Collection[int], *, unclean_enabled: bool = False
) -> Elected | None:
    """Return the first live replica in sync; with `unclean_enabled`, else the first live one."""
    if (leader := reassigned_leader(replicas, isr, live)) is not None:
        return Elected(leader)
    if unclean_enabled and (leader := reassigned_leader(replicas, replicas, live)) is not None:
        return Elected(leader, unclean=True)
    return None


def reassigned_leader(target: Collection[int], isr: Collection[int], live: Collection[int]) -> int | None:
    """Return the first of the target's replicas that is alive and in sync."""
    return next((replica for replica in target if replica in live and replica in isr), None)


def preferred_leader(replicas: Collection[int], isr: Collection[int], live: Collection[int]) -> int | None:
    """Return the first replica of the assignment if it is alive and in sync, and no other."""
    preferred = next(iter(replicas))
    return preferred if preferred in live and preferred in isr else None


def shutdown_leader(
    replicas: Collection[int], isr: Collection[int], live: Collection[int], shutting_down: Collection[int]
) -> int | None:
    """Return the first replica that is alive, in sync and not shutting down."""
    return reassigned_leader(without(replicas, shutting_down), isr, live)


# --- the state after a change of brokers ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A live broker process; `clean` means that it lost no acknowledged record when it last stopped.

    `continues` are its own former epochs: it still holds what it held in them.
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
    """Return the standing of an ISR member, from its recorded epoch and its live incarnation."""
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
    """Return a new partition's state: its live replicas in sync, the first leading; None if none is alive."""
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
    """Return the state at another durability level; earlier records may not be on disk (`all_synced`)."""
    if durability is state.durability:
        return state
    mark("election: a partition changes its level")
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
    """Return the state that the live brokers call for; None if it is the persisted one.

    Every change of leader or ISR takes a new leader epoch, which fences a leader that does not know of it. An
    unclean election prefers a replica that is not known to have lost records. A broker in `shutting_down`
    keeps its leaderships until another replica can lead, and gets no new ones. `failed` are live brokers
    whose replica is unusable: how much of it survives is unknown. `refusing` last reported that their
    replica is unusable, and may still count as live: none of them is elected from outside the ISR.
    """
    recorded = dict(state.eligible) | _recorded(state)
    standings = {member: standing(epoch, live.get(member)) for member, epoch in recorded.items()}
    lost = [member for member in standings if standings[member] is Standing.LOST]
    staying = without(live, shutting_down)
    # An elected replica that refuses has already pushed all others out of the ISR, complete ones too.
    able = without(staying, refusing)

    def members(wanted: Standing) -> tuple[int, ...]:
        return tuple(member for member in state.isr if standings[member] is wanted)

    recovering = False
    if intact := members(Standing.INTACT):
        isr = intact
        # Kafka records no incarnations: the one alive at our first look is the one that counts.
        recorded.update({member: live[member].epoch for member in isr})
        leader = state.leader if state.leader in isr else _first(replicas, isr, shutting_down)
        if leader == state.leader and isr != state.isr:
            mark("election: a follower is gone, the leader stays")
        elif state.leader == NO_LEADER:
            mark("election: a member in sync is back and leads again")
        recovering = state.recovering and leader == state.leader
    elif restarted := members(Standing.RESTARTED):
        mark("election: all live members were restarted and kept everything")
        isr, leader = restarted, _first(replicas, restarted, shutting_down)
        recorded.update({member: live[member].epoch for member in isr})
    elif eligible := tuple(
        each for each in replicas if each in standings and each in staying and each not in lost
    ):
        mark("election: outside an ISR that was too small to commit")
        isr, leader = eligible, eligible[0]
        recorded.update({member: live[member].epoch for member in isr})
    elif unclean_enabled and (
        elected := offline_leader(replicas, (), without(able, lost), unclean_enabled=True)
        or offline_leader(replicas, (), able, unclean_enabled=True)
    ):
        mark("election: unclean")
        leader, isr, recovering = elected.leader, (elected.leader,), True
        recorded[leader] = live[leader].epoch
    else:
        # Dead members may have kept everything: only they stay. If all came back with a loss, they stay
        # too, marked as lost, because an ISR is never empty.
        mark("election: no replica may lead")
        if not members(Standing.DEAD):
            mark("election: every member came back with a loss")
        isr, leader = members(Standing.DEAD) or state.isr, NO_LEADER
        recorded.update(dict.fromkeys(members(Standing.LOST), LOST_BROKER_EPOCH))
    decided = in_new_epoch(state, leader, isr, recorded, controller_epoch, recovering=recovering)
    decided = with_eligible(state, decided, replicas, lost=(*lost, *failed))
    if (leader, isr, decided.isr_broker_epochs) != (state.leader, state.isr, state.isr_broker_epochs):
        return decided
    if decided.eligible != state.eligible:
        mark("election: an eligible replica came back with a loss")
        return replace(state, controller_epoch=controller_epoch, eligible=decided.eligible)
    return None


def preferred_state(
    state: LeaderAndIsr, replicas: tuple[int, ...], live: Mapping[int, Incarnation], controller_epoch: int
) -> LeaderAndIsr | None:
    """Return the state led by the preferred replica, the ISR unchanged; None if it may not lead.

    It may not if it is dead, out of sync, or a later incarnation than the recorded member. `live` must not
    include brokers that are shutting down.
    """
    leader = preferred_leader(replicas, _intact(state, live), live)
    if leader is None:
        return None
    return in_new_epoch(state, leader, state.isr, _recorded(state), controller_epoch)


def state_after_shutdown(
    state: LeaderAndIsr,
    replicas: tuple[int, ...],
    live: Mapping[int, Incarnation],
    shutting_down: Collection[int],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """Return the state without the brokers that shut down; None if unchanged, or if no other can lead.

    `live` includes them. The last member that could lead keeps its role: its records matter more.
    """
    isr = without(state.isr, shutting_down)
    if isr == state.isr or state.leader == NO_LEADER:
        return None
    leader: int | None = state.leader
    if leader in shutting_down:
        leader = shutdown_leader(replicas, _intact(state, live), live, shutting_down)
    if leader is None:
        return None
    after = in_new_epoch(state, leader, isr, _recorded(state), controller_epoch)
    return with_eligible(state, after, replicas)


def in_new_epoch(
    state: LeaderAndIsr,
    leader: int,
    isr: tuple[int, ...],
    recorded: Mapping[int, int],
    controller_epoch: int,
    *,
    recovering: bool = False,
) -> LeaderAndIsr:
    """Return `state` in its next leader epoch, with this leader and ISR; `recorded` has the broker epochs."""
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        controller_epoch=controller_epoch,
        isr_broker_epochs=tuple(recorded[member] for member in isr),
        recovering=recovering,
        # A leader from outside the ISR may not have flushed everything.
        all_synced=state.all_synced and not recovering,
    )


def _recorded(state: LeaderAndIsr) -> dict[int, int]:
    return dict(zip(state.isr, state.isr_broker_epochs, strict=True))


def _intact(state: LeaderAndIsr, live: Mapping[int, Incarnation]) -> tuple[int, ...]:
    recorded = _recorded(state).items()
    return tuple(member for member, epoch in recorded if standing(epoch, live.get(member)) is Standing.INTACT)


def _first(replicas: tuple[int, ...], candidates: tuple[int, ...], shutting_down: Collection[int]) -> int:
    # An ISR member outside the assignment exists only in the middle of a reassignment. A broker that shuts
    # down leads only if no other can.
    staying = without(candidates, shutting_down) or candidates
    return next((replica for replica in replicas if replica in staying), staying[0])


# --- eligible replicas ------------------------------------------------------------------------


def with_eligible(
    before: LeaderAndIsr, after: LeaderAndIsr, replicas: Collection[int], *, lost: Collection[int] = ()
) -> LeaderAndIsr:
    """Return `after`, which is to replace `before`, with its eligible replicas.

    `replicas` is the assignment that goes with `after`; `lost` are replicas known to lack records.
    """
    if len(after.isr) >= after.min_insync or after.recovering:
        if before.eligible:
            mark("eligible: cleared")
        return replace(after, eligible=())
    former = {*map(Eligible, before.isr, before.isr_broker_epochs), *before.eligible}
    eligible = tuple(
        sorted(
            each
            for each in former
            # An incarnation that was not recorded cannot be distinguished from any other.
            if each.replica not in after.isr
            and each.replica in replicas
            and each.replica not in lost
            and each.broker_epoch >= 0
        )
    )
    if eligible and not before.eligible:
        mark("eligible: replicas that leave an ISR too small to commit")
    return replace(after, eligible=eligible)


def with_min_insync(
    state: LeaderAndIsr, min_insync: int, replicas: Collection[int], controller_epoch: int
) -> LeaderAndIsr:
    """Return the state with another `min_insync`, and the eligible replicas that go with it."""
    if min_insync == state.min_insync:
        return state
    after = replace(state, min_insync=min_insync, controller_epoch=controller_epoch)
    return with_eligible(state, after, replicas)
