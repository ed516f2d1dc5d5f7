"""Carry messages between machines: delayed, lost, duplicated, reordered, or cut off.

One place decides the fate of every message: of nodes here, of clients in `client_link`, of the metadata store
in `store_link`. Links are directed; `cuts` are those that are down.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

from logstore.replication.effects import Abandoned, Disconnected, Event, Peer, Request, Respond, Response
from logstore.testing.hosts import Host
from logstore.testing.swarm import Swarm, stream
from logstore.testing.timeline import Timeline

STORE = -1
"""The metadata store's number among the nodes."""


class _Exchange(NamedTuple):
    """A request and its response: the asking host and its life, the node asked, the correlation id."""

    asker: Host
    life: Hashable
    asked: int
    correlation_id: int


def links_between(groups: Sequence[Sequence[int]], *, one_way: bool) -> list[tuple[int, int]]:
    """Return the directed links from each group to the others; with `one_way`, only from the first group."""
    named = [node for group in groups for node in group]
    if len(groups) < 2 or not all(groups) or len(named) != len(set(named)):
        raise ValueError("a partition needs two or more sides, each with a node, and no node on two of them")
    sources = groups[:1] if one_way else groups
    return [(here, there) for group in sources for here in group for there in named if there not in group]


class Network:
    """All links. `receive` delivers a message to a node, if its process is the one that was addressed."""

    def __init__(
        self,
        time: Timeline,
        swarm: Swarm,
        hosts: Mapping[int, Host],
        receive: Callable[[Host, Event], None],
    ) -> None:
        self.is_calm = True
        """While True, no message is lost, late or duplicated."""
        self.cuts: set[tuple[int, int]] = set()
        self._unnoticed: set[tuple[int, int]] = set()
        """Cuts that neither end notices: half-open connections."""
        self._slow: dict[tuple[int, int], int] = {}
        self.random = stream(swarm.seed, "network")
        self._time = time
        self._swarm = swarm
        self._hosts = hosts
        self._receive = receive
        self._lanes: dict[tuple[int, int], tuple[int, float]] = {}

    def cut(self, pairs: Iterable[tuple[int, int]], *, is_noticed: bool = True) -> None:
        """Cut these directions. The sender notices a broken connection (`is_noticed`), or waits for its
        timeout."""
        pairs = sorted(set(pairs))
        self._time.note("cut", pairs)
        self._time.tally.cuts += 1
        self.cuts.update(pairs)
        if not is_noticed:
            self._unnoticed.update(pairs)

    def mend(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Mend these directions."""
        pairs = sorted(set(pairs))
        self._time.note("mended", pairs)
        self.cuts.difference_update(pairs)
        self._unnoticed.difference_update(pairs)

    def slow(self, pairs: Iterable[tuple[int, int]], extra_ms: int) -> None:
        """Make messages in these directions take `extra_ms` longer; 0 ends it."""
        pairs = sorted(set(pairs))
        self._time.note("slow", pairs, "by", extra_ms)
        for pair in pairs:
            self._slow[pair] = extra_ms

    def unsettle(self, *, drop_rate: float, duplicate_rate: float, delay_ms: int, reordering: bool) -> None:
        """Treat messages like this from now on, instead of the seed's rates."""
        features = replace(self._swarm.features, reordering=reordering)
        self._swarm = replace(
            self._swarm,
            drop_rate=drop_rate,
            duplicate_rate=duplicate_rate,
            delay_ms=delay_ms,
            features=features,
        )
        self.is_calm = False

    def calm(self) -> None:
        """Lose, duplicate and delay nothing from now on. Cuts stay."""
        self.is_calm = True
        self._slow.clear()

    # --- how messages fare -----------------------------------------------------------------------

    def delay(self, random: Random) -> int:
        swarm = self._swarm
        if self.is_calm:
            return 1 + int(random.random() * 2)
        delay_ms = 1 + int(random.expovariate(1.0 / swarm.delay_ms))
        if swarm.slow_rate and random.random() < swarm.slow_rate:
            delay_ms += random.randrange(2 * swarm.request_timeout_ms)
        return delay_ms

    def lateness(self, copy: int) -> int:
        """Return by how many milliseconds the second copy of a message is later."""
        is_late = copy and self._swarm.late_copies
        return self.random.randrange(2 * self._swarm.request_timeout_ms) if is_late else 0

    def along(
        self, source: int, target: int, delay_ms: int, callback: Callable[..., None], *arguments: object
    ) -> None:
        """Schedule an arrival. Messages of one connection keep their order, unless the seed reorders them."""
        at_ms = self._time.now_ms + delay_ms + self._slow.get((source, target), 0)
        if self._swarm.features.reordering and STORE not in (source, target) and not self.is_calm:
            self._time.push(at_ms, self._time.draw_tie(), callback, arguments)
            return
        last_ms, tie = self._lanes.get((source, target), (0, 0.0))
        if at_ms > last_ms:
            tie = self._time.draw_tie()
        else:
            at_ms = last_ms
        self._lanes[source, target] = at_ms, tie
        self._time.push(at_ms, tie, callback, arguments)

    @property
    def last_arrival_ms(self) -> int:
        """The time at which the last message under way now arrives. Reordered ones do not count."""
        return max((last_ms for last_ms, _ in self._lanes.values()), default=0)

    def is_lost(self) -> bool:
        return not self.is_calm and self.random.random() < self._swarm.drop_rate

    def copies(self) -> int:
        """Return how often a message arrives."""
        return 2 if not self.is_calm and self.random.random() < self._swarm.duplicate_rate else 1

    def suspend(self, for_ms: int) -> None:
        """Delay messages under way by `for_ms`; messages sent later do not overtake them."""
        self._lanes = {lane: (last_ms + for_ms, tie) for lane, (last_ms, tie) in self._lanes.items()}

    # --- requests and answers of nodes -----------------------------------------------------------

    def send(self, host: Host, target: int, request: Request) -> None:
        exchange = _Exchange(host, host.life, target, request.correlation_id)
        other = self._hosts[target]
        self._carry(host.node_id, target, exchange, self._arrive, other, other.life, request)

    def respond(self, host: Host, effect: Respond) -> None:
        """Carry an answer to the process that asked; the next one of its node may use the same ids."""
        target, correlation_id, body, life = effect
        exchange = _Exchange(self._hosts[target], life, host.node_id, correlation_id)
        response = Response(host.node_id, correlation_id, body)
        self._carry(host.node_id, target, exchange, self._answered, response)

    def _carry(
        self, source: int, target: int, exchange: _Exchange, callback: Callable[..., None], *arguments: object
    ) -> None:
        if self.is_lost():
            self._lose(exchange)
            return
        for copy in range(self.copies()):
            delay_ms = self.delay(self.random) + self.lateness(copy)
            self.along(source, target, delay_ms, callback, exchange, *arguments)

    def _arrive(self, exchange: _Exchange, target: Host, life: int, request: Request) -> None:
        if (exchange.asker.node_id, target.node_id) in self.cuts:
            self._lose(exchange)
        elif target.life != life or target.node is None:
            self.break_off(exchange.asker, target.node_id, exchange.correlation_id)
        else:
            self._receive(target, request)

    def _answered(self, exchange: _Exchange, response: Response) -> None:
        asker = exchange.asker
        if asker.life != exchange.life:
            return
        if (exchange.asked, asker.node_id) in self.cuts:
            self._lose(exchange)
        else:
            self._receive(asker, response)

    def _lose(self, exchange: _Exchange) -> None:
        """Lose a request or its response: the sender notices it, or waits for its timeout."""
        asker, life, asked, correlation_id = exchange
        if (asker.node_id, asked) in self._unnoticed or (asked, asker.node_id) in self._unnoticed:
            return
        if asker.life == life and self.random.random() < 0.6:
            self.break_off(asker, asked, correlation_id)

    def break_off(self, source: Host, target: int, correlation_id: int) -> None:
        if source.outstanding.pop(correlation_id, None) is not None:
            self.abandon(source, target, correlation_id)
            self._time.at(
                self.delay(self.random), self._hear, source, source.life, Disconnected(target, correlation_id)
            )

    def abandon(self, source: Host, target: int, correlation_id: int) -> None:
        """Tell the target that the connection of a request is gone."""
        asked = self._hosts.get(target)
        if asked is not None and asked.node is not None:
            abandoned = Abandoned(Peer(source.node_id, correlation_id, source.life))
            self._time.at(0, self._hear, asked, asked.life, abandoned)

    def _hear(self, host: Host, life: int, event: Event) -> None:
        if host.life == life:
            self._receive(host, event)
