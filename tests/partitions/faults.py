"""The kinds of partitions: which flows are cut, and what has to happen while they are. Pure.

The victim is the leader of partition 0; for `controller`, the controller.

    alone        the victim reaches nobody, and nobody reaches it
    cluster      neither the other brokers nor the store; clients reach it
    store        not the store; brokers and clients reach it
    brokers      not the other brokers; store and clients reach it
    clients      not the clients
    mute         nothing that it sends arrives: it hears requests, and its answers are lost
    deaf         nothing that is sent to it arrives
    controller   the controller reaches neither the other brokers nor the store
    pair         the victim and one other broker do not reach each other; both reach the rest
    all-store    no broker reaches the store
    stall        as `alone`, but each connection stops in the middle of a frame
    slow         each connection of the victim carries 32 KiB a second
    flap         as `alone`, four times for less than a session
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple

from tests.partitions.network import CLIENTS, Flow, Party

STORE: Final[Party] = "store"


class Expected(Enum):
    """The condition for healing the network."""

    LEADERS = "others lead and control, and clients go on"
    PROGRESS = "clients go on"
    NOTHING = "nothing"


class Kind(NamedTuple):
    """How a victim is cut off. `others` stands for both other brokers, `other` for the first of them."""

    expected: Expected
    cut_off_from: tuple[Party, ...] = ("others", STORE, CLIENTS)
    hears: bool = False
    """Whether what is sent to the victim arrives."""
    speaks: bool = False
    """Whether what it sends arrives."""


KINDS: Final = {
    "alone": Kind(Expected.LEADERS),
    "store": Kind(Expected.LEADERS, (STORE,)),
    "stall": Kind(Expected.LEADERS),
    "brokers": Kind(Expected.NOTHING, ("others",)),
    "mute": Kind(Expected.LEADERS, hears=True),
    "slow": Kind(Expected.PROGRESS),
    "cluster": Kind(Expected.LEADERS, ("others", STORE)),
    "all-store": Kind(Expected.NOTHING, (STORE,)),
    "deaf": Kind(Expected.LEADERS, speaks=True),
    "controller": Kind(Expected.LEADERS, ("others", STORE)),
    "clients": Kind(Expected.NOTHING, (CLIENTS,)),
    "pair": Kind(Expected.NOTHING, ("other",)),
    "flap": Kind(Expected.NOTHING),
}


def flows_of(name: str, victim: Party, others: tuple[Party, ...]) -> frozenset[Flow]:
    """Return the flows that a kind cuts (or slows) around this victim."""
    kind = KINDS[name]
    if name == "all-store":
        return frozenset(chain.from_iterable(_both(each, STORE) for each in (victim, *others)))
    far = chain.from_iterable(_parties(each, others) for each in kind.cut_off_from)
    flows = chain.from_iterable(_both(victim, each) for each in far)
    return frozenset(
        flow
        for flow in flows
        if not (kind.hears and flow.target == victim) and not (kind.speaks and flow.source == victim)
    )


def _parties(name: Party, others: tuple[Party, ...]) -> Iterable[Party]:
    return {"others": others, "other": others[:1]}.get(name, (name,))


def _both(one: Party, other: Party) -> tuple[Flow, Flow]:
    return Flow(one, other), Flow(other, one)
