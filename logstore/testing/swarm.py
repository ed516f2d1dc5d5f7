"""Draw one seed's world: the shape of its cluster, its faults and their rates. Pure.

Every seed switches about half of the features off. A run with all of them is mostly noise: two faults that
must meet would be kept apart by ten others, and some bugs show only if something never happens (no flush,
no restart).

Every concern has its own random stream, named for it. A fault that is taken out of a seed leaves the draws
of clients and of other faults unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any

from logstore.replication.durability import Durability


def stream(seed: int, concern: str) -> Random:
    """Return the random numbers of one concern in one seed, the same in every process."""
    return Random(f"{seed}/{concern}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The kinds of events that are possible in a seed. Each is on in about half of the seeds."""

    drops: bool
    """Messages are lost; the sender notices a broken connection, or nothing."""
    duplicates: bool
    """Messages arrive twice (requests of clients only where a retry is harmless)."""
    reordering: bool
    """Messages of one connection overtake each other."""
    slow_links: bool
    """Some messages take as long as a timeout."""
    store_losses: bool
    """Store calls are lost, or applied with their response lost."""
    bad_batches: bool
    """Clients send batches with a wrong checksum."""
    idempotence: bool
    """Producers are idempotent: they number their batches and retry them."""


FAULT_NAMES = (
    "kill", "bounce", "stop", "shut_down", "pause", "crash_in_start", "power_cut", "rack_power_cut",
    "dead_disk", "failed_sync", "full_disk", "slow_disk", "flush", "isolate", "cut_link", "cut_one_way",
    "cut_store", "slow_link", "expire", "depose", "store_outage", "notice",
)  # fmt: skip
"""Faults of the nemesis, defined in `faults.FAULTS`."""
COMMAND_NAMES = (
    "create_topic", "delete_topic", "add_partitions", "reassign", "cancel_reassignment", "elect_preferred",
    "elect_unclean", "alter_config", "alter_durability", "delete_records",
)  # fmt: skip
"""Commands of the operator, defined in `operator.COMMANDS`."""
THEMED_COMMAND_NAMES = ("delete_to_an_end",)
"""Commands that only themes use."""
HAND_NAMES = (
    "reassign_by_hand", "delete_by_hand", "delete_what_moves", "add_partition_by_hand", "create_on_the_dead",
    "wipe_topic", "spoil_topic", "touch_state", "raise_controller_epoch", "renew_session", "suspend", "rot",
    "fill_while_down", "forge_order",
)  # fmt: skip
"""Changes that bypass the brokers, defined in `by_hand.BY_HAND`."""
THEMED_HAND_NAMES = ("replace_topic", "switch_as_power_goes")
"""Changes by hand that only themes use."""
DISK_FAULTS = frozenset({"dead_disk", "failed_sync", "full_disk"})
_LONGEST_REQUEST_MS = 1500
"""A request may be lost just before the last fault ends; a leader is due two seconds later."""
_LONGEST_BACKOFF_MS = 200
_LIKELIHOODS = (0.25, 0.5, 1.0, 1.0, 2.0, 4.0)


def draw_rates(seed: int, names: Iterable[str]) -> dict[str, float]:
    """Return the relative rate of each name; about half are 0."""
    rates = {}
    for name in names:
        random = stream(seed, f"rate of {name}")
        is_on, rate = random.random() < 0.5, random.choice(_LIKELIHOODS)
        rates[name] = rate if is_on else 0.0
    return rates


_LATE_ORDERS: Mapping[str, float] = {
    "reordering": True,
    "duplicates": True,
    "duplicate_rate": 0.3,
    "late_copies": True,
}
"""The same order arrives twice, the second time long after later ones."""
_THEMES: tuple[Mapping[str, float], ...] = (
    {
        "kill": 1,
        "create_topic": 2,
        "delete_topic": 2,
        "delete_by_hand": 1,
        "add_partition_by_hand": 1,
        "wipe_topic": 1,
    },
    {"full_disk": 2, "power_cut": 0.25, "create_topic": 1, "delete_topic": 2},
    {"depose": 0.25, "create_topic": 1, "add_partitions": 3, "delete_topic": 0.25, "store_losses": 1},
    {"kill": 1, "slow_link": 1, "reassign": 2, "cancel_reassignment": 0.5, "reassign_by_hand": 1},
    {
        "kill": 2,
        "stop": 0.5,
        "reassign": 1,
        "delete_topic": 1,
        "spoil_topic": 0.5,
        "create_on_the_dead": 2,
    },
    {"create_topic": 1, "reassign": 1, "delete_what_moves": 2, "delete_by_hand": 1},
    {
        "bounce": 1,
        "pause": 0.5,
        "renew_session": 2,
        "raise_controller_epoch": 1,
        "touch_state": 4,
        "cut_link": 2,
    },
    {"flush": 3, "rot": 2, "stop": 0.5},
    {"full_disk": 0.5, "fill_while_down": 2, "dead_disk": 0.1},
    {"alter_config": 3, "suspend": 0.25, "kill": 0.5},
)
"""The combinations that lead to a rare branch, with little else.

A feature named here is on; another field of the swarm named here has that value.
"""
_HARMFUL_THEMES: tuple[Mapping[str, float], ...] = (
    {"power_cut": 4, "depose": 1.5, "cut_link": 1, "slow_link": 1},
    {"expire": 1, "cut_link": 2, "elect_preferred": 4, "slow_links": 1, "reordering": 1},
    {"isolate": 2, "cut_link": 1, "expire": 1, "delete_to_an_end": 4},
    {"full_disk": 3, "create_topic": 2, "reassign": 2, "elect_preferred": 2},
    {
        "switch_as_power_goes": 1,
        "slow_disk": 2,
        "reckless": True,
        "unclean_election": True,
        "command_interval_ms": 150,
    },
    {"create_topic": 2, "delete_topic": 1, "replace_topic": 2, "command_interval_ms": 60, **_LATE_ORDERS},
    {"reassign": 2, "cancel_reassignment": 2, "command_interval_ms": 60, **_LATE_ORDERS},
)
"""The combinations under which a missing rule does harm; one seed in twenty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """One seed's world. Times are virtual milliseconds, rates are probabilities."""

    seed: int
    nodes: int
    partitions: int
    replication_factor: int
    min_insync_replicas: int
    durability: Durability
    truncate_on_fetch: bool = True
    fetch_sessions: int = 1000
    """Fetch sessions that a leader keeps: none, too few for its followers, or enough."""
    lag_max_messages: int = -1
    unclean_election: bool = False
    reckless: bool
    """Faults may take the last in-sync replica; the partition may then wait for its operator."""
    session_timeout_ms: int
    lag_time_max_ms: int
    fetch_wait_ms: int
    fetch_max_bytes: int
    request_timeout_ms: int
    backoff_ms: int
    checkpoint_interval_ms: int
    segment_bytes: int
    retention_bytes: int = -1
    """Retention size of every log in bytes; -1: no limit."""
    retention_check_interval_ms: int
    delay_ms: int
    drop_rate: float = 0.0
    duplicate_rate: float = 0.0
    slow_rate: float = 0.0
    late_copies: bool = False
    """The second copy of a message is as late as a timeout."""
    store_loss_rate: float = 0.0
    rates: dict[str, float]
    """Relative rate of each fault; 0: never."""
    fault_interval_ms: int
    command_rates: dict[str, float]
    """Relative rate of each command."""
    command_interval_ms: int
    hand_rates: dict[str, float] = field(default_factory=dict)
    """Relative rate of each change by hand; empty in most seeds."""
    rot_interval_ms: int = 0
    """How often bytes change on a disk; 0: never."""
    boot_ids: bool = False
    """Nodes know in which boot of their machine they run: who is killed loses nothing (decision 040)."""
    delete_topic_enable: bool = True
    racks: int = 0
    """Number of racks of nodes and consumers, who read from their own rack; 0: no racks."""
    produce_interval_ms: int
    producers: int
    consumers: int
    features: Features = field(repr=False)

    @property
    def enabled(self) -> list[str]:
        """The features that are on."""
        found = [each.name for each in fields(self.features) if getattr(self.features, each.name)]
        found += [name for name, rate in (self.rates | self.command_rates | self.hand_rates).items() if rate]
        found += ["bit rot"] if self.rot_interval_ms else []
        found += ["boot ids"] if self.boot_ids else []
        found += ["retention"] if self.retention_bytes >= 0 else []
        return [*found, "racks"] if self.racks else found

    @property
    def disks_may_fail(self) -> bool:
        """Whether disk calls of nodes can fail."""
        return any(self.rates[name] for name in DISK_FAULTS)


def draw(seed: int) -> Swarm:
    """Return the world of `seed`."""
    random = stream(seed, "swarm")
    features = Features(**{each.name: random.random() < 0.5 for each in fields(Features)})
    nodes = random.choice((3, 3, 4, 5))
    factor = min(nodes, random.choice((2, 3, 3, 4)))
    # A quarter of the clusters have timeouts of seconds like real ones; the others have fractions.
    pace = stream(seed, "pace").choice((1, 1, 1, 20))
    session_timeout_ms = pace * random.choice((120, 200, 500))
    lag_time_max_ms = pace * random.choice((100, 250, 600))
    retention = stream(seed, "retention")
    retains = retention.random() < 0.3
    rates, command_rates = draw_rates(seed, FAULT_NAMES), draw_rates(seed, COMMAND_NAMES)
    hands = stream(seed, "hands")
    hand_rates = draw_rates(seed, HAND_NAMES) if hands.random() < 0.2 else {}
    if hand_rates.get("spoil_topic"):
        hand_rates["wipe_topic"] = 0.0  # the topic to repair would be ambiguous
    theme = stream(seed, "theme")
    kind = theme.random()
    given: dict[str, Any] = {}
    if kind < 0.2:
        chosen = theme.choice(_THEMES if kind < 0.15 else _HARMFUL_THEMES)
        named = {each.name: True for each in fields(Features) if each.name in chosen}
        features = replace(features, **named)
        rates, command_rates, hand_rates = (
            {name: chosen.get(name, 0.0) for name in names}
            for names in (
                FAULT_NAMES,
                (*COMMAND_NAMES, *THEMED_COMMAND_NAMES),
                (*HAND_NAMES, *THEMED_HAND_NAMES),
            )
        )
        given = {each.name: chosen[each.name] for each in fields(Swarm) if each.name in chosen}
    racks = stream(seed, "racks")
    swarm = Swarm(
        seed=seed,
        nodes=nodes,
        partitions=random.choice((1, 1, 1, 2)),
        replication_factor=factor,
        min_insync_replicas=random.choice((1, 1, 2, 2, factor)),
        durability=Durability.SYNCED if random.random() < 0.3 else Durability.REPLICATED,
        truncate_on_fetch=random.random() < 0.75,
        fetch_sessions=stream(seed, "fetch sessions").choice((0, 1, 2, 1000, 1000, 1000)),
        lag_max_messages=random.choice((-1, -1, -1, 4)),
        unclean_election=random.random() < 0.15,
        reckless=random.random() < 0.25,
        session_timeout_ms=session_timeout_ms,
        lag_time_max_ms=lag_time_max_ms,
        fetch_wait_ms=min(pace * random.choice((20, 50, 100)), 1000),
        fetch_max_bytes=random.choice((1, 300, 1 << 16)),
        request_timeout_ms=min(pace * random.choice((120, 300)), _LONGEST_REQUEST_MS),
        backoff_ms=min(pace * random.choice((10, 30, 80)), _LONGEST_BACKOFF_MS),
        checkpoint_interval_ms=pace * random.choice((100, 500, 2000)),
        segment_bytes=random.choice((1500, 6000, 1 << 20)),
        retention_bytes=retention.choice((0, 1000, 4000)) if retains else -1,
        retention_check_interval_ms=pace * retention.choice((50, 200, 1000)),
        delay_ms=random.choice((1, 4, 12)),
        drop_rate=random.choice((0.005, 0.02, 0.06)) if features.drops else 0.0,
        duplicate_rate=random.choice((0.01, 0.05, 0.15)) if features.duplicates else 0.0,
        slow_rate=random.choice((0.01, 0.05)) if features.slow_links else 0.0,
        store_loss_rate=random.choice((0.02, 0.1)) if features.store_losses else 0.0,
        rates=rates,
        fault_interval_ms=int(session_timeout_ms * random.choice((0.25, 0.6, 1.5))),
        command_rates=command_rates,
        command_interval_ms=int(session_timeout_ms * stream(seed, "operator").choice((0.4, 1.0, 3.0))),
        hand_rates=hand_rates,
        delete_topic_enable=stream(seed, "delete.topic.enable").random() < 0.94,
        racks=racks.choice((2, 3)) if racks.random() < 0.2 else 0,
        produce_interval_ms=pace * random.choice((10, 25, 70)),
        producers=random.choice((1, 2, 3)),
        consumers=random.choice((1, 1, 2)),
        features=features,
    )
    swarm = replace(swarm, **given)
    rot = stream(seed, "bit rot")
    swarm = rotting(swarm, rot.choice((0.2, 1.0))) if rot.random() < 0.2 else swarm
    return replace(
        swarm, boot_ids=stream(seed, "boot ids").random() < (0.6 if swarm.rot_interval_ms else 0.15)
    )


def rotting(swarm: Swarm, sessions: float = 1.0) -> Swarm:
    """Return this world with bit rot every so many session timeouts, where a sound copy certainly lives.

    That leaves out worlds in which an operator, or a fault, may take the last one.
    """
    if swarm.reckless or swarm.unclean_election or swarm.hand_rates or swarm.replication_factor < 2:
        return swarm
    return replace(
        swarm,
        rot_interval_ms=int(sessions * swarm.session_timeout_ms),
        segment_bytes=min(swarm.segment_bytes, 6000),
    )
