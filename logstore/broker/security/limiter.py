"""Enforces quotas: measures what requests use, and mutes clients above their quota.

    request ─▶ admits ─▶ handler ─▶ Meter.limit(answer) ─▶ answer with its throttle time; then silence

As in Kafka (ClientQuotaManager, ClientRequestQuotaManager, ControllerMutationQuotaManager; KIP-13, 124, 219,
599): a produce request counts with its size, a fetch with its answer's, and a throttled fetch is answered
without records. Without quotas a request costs one comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from logstore.broker.links import is_of_broker
from logstore.broker.security.config import IN_PROCESS
from logstore.broker.security.connection_rates import ConnectionRates
from logstore.broker.security.door import AMONG_BROKERS
from logstore.broker.security.quotas import IP, Key, Kind, Quotas, TokenBucket
from logstore.broker.security.refused import refused_entry
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import response_frame
from logstore.disk.clocks import steady_s
from logstore.disk.errors import ErrorCode
from logstore.disk.ids import id_to_text

if TYPE_CHECKING:
    from logstore.broker.dispatch import Call
    from logstore.broker.security.authorizer import Authorizer
    from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.messages import CONSUMER_REPLICA_ID
from logstore.replication.rates import Rate, Windows

_PRODUCE, _FETCH = 0, 1
_CREATE, _DELETE, _GROW = 19, 20, 37
_STRICT_FROM: Final = {_CREATE: 6, _DELETE: 5, _GROW: 3}
"""By the API key of a controller mutation: from this version on it is refused, and before only delayed."""
_PLACES: Final = {_CREATE: "topics", _DELETE: "responses", _GROW: "results"}
"""Where each answer has its entries."""
_DELETE_BY_ID: Final = 6
_MOST_KNOWN: Final = 4_096
"""Clients and budgets that are remembered before idle ones are looked for."""
_LONGEST_CLIENT: Final = 256
"""Of a longer client id, the beginning and the hash are remembered: it may have 32 KiB."""
_EXCEEDED: Final = "The throttling quota has been exceeded."


@dataclass(frozen=True, slots=True)
class _Budget:
    """A quota, and what those who share it have used."""

    kind: Kind
    key: Key
    bound: float
    rate: Rate
    bucket: TokenBucket


class Limiter:
    """One for all connections of a broker. Belongs to the event loop's thread."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        metadata: MetadataCache,
        windows: Windows,
        mutation_windows: Windows,
        default_partitions: int = 1,
        *,
        take_back: Callable[[int], int],
    ) -> None:
        """`take_back` gets the session of each fetch whose answer is withheld, as in `FetchSessions`."""
        self.is_on = False
        """Whether there is any quota of requests."""
        self.throttled: Counter[Kind] = Counter()
        """By quota: answers to clients that were above it."""
        self.throttled_ms: Counter[Kind] = Counter()
        self.authorizer: Authorizer | None = None
        """Decides who is a broker; None: everyone who says so."""
        self.now_ms, self.windows = now_ms, windows
        self._metadata, self._mutation_windows = metadata, mutation_windows
        self._default_partitions = default_partitions
        self.take_back = take_back
        self.quotas = Quotas()
        """Those in force."""
        self.connections = ConnectionRates(windows, self.throttled, self.throttled_ms)
        self._budgets: dict[tuple[Kind, Key], _Budget] = {}
        self._known: dict[tuple[str, str], dict[Kind, _Budget]] = {}
        self._next_look = _MOST_KNOWN

    def replace(self, quotas: Quotas) -> None:
        """Hold clients to these quotas from now on. What they used before still counts."""
        self.quotas = quotas
        self.is_on = any(not kind.is_for(((IP, None),)) for each in quotas.values.values() for kind in each)
        self.connections.replace(quotas)
        self._known.clear()
        for kind, key in list(self._budgets):
            bound = quotas.bound(kind, key.user or "", key.client or "")
            if bound is None or bound[1] != key:
                del self._budgets[kind, key]

    def measured(self) -> Iterator[tuple[Kind, Key, float]]:
        """Yield the rate (or tokens) of everyone who shares a budget."""
        now_ms = self.now_ms()
        for (kind, key), each in self._budgets.items():
            if kind is Kind.MUTATION:
                yield kind, key, each.bucket.tokens(each.bound, now_ms)
            else:
                yield kind, key, each.rate.per_second(now_ms)

    def measure(self, call: Call, body: Struct) -> None:
        """Give the call a meter, if quotas limit its client. A request that is then denied counts, too."""
        if self._is_exempt(call, body):
            return
        budgets = self._budgets_of(call.connection.principal.removeprefix("User:"), call.client_id or "")
        if budgets:
            call.meter = Meter(self, call, budgets)

    def admits(self, call: Call, body: Struct) -> bool:
        """Return whether the handler is to see a measured request, maybe without some entries; else answer
        it.
        """
        assert call.meter is not None, "measured"
        key, budgets = call.api.key, call.meter.budgets
        if key == _FETCH and (budget := budgets.get(Kind.FETCH)) is not None:
            call.meter.limit_fetch(body, budget.bound)
        if key in _STRICT_FROM and Kind.MUTATION in budgets and not getattr(body, "validate_only", False):
            return self._takes_mutations(call, body, budgets[Kind.MUTATION])
        return True

    def _is_exempt(self, call: Call, body: Struct) -> bool:
        """Return whether a request is a broker's, or the program's that the broker runs in."""
        if call.connection.principal == IN_PROCESS or call.api.key in AMONG_BROKERS:
            return True
        return _may_be_of_broker(call.api.key, body) and self.is_of_brokers(call)

    def is_of_brokers(self, call: Call) -> bool:
        """Return whether another broker sent a request, for instance one that it forwards."""
        if not is_of_broker(call.client_id):
            return False
        door = call.connection.door
        is_there = door is None or door.is_for_brokers
        return is_there and (self.authorizer is None or self.authorizer.is_broker(call))

    def _budgets_of(self, user: str, client: str) -> dict[Kind, _Budget]:
        kept = client
        if len(client) > _LONGEST_CLIENT:
            kept = f"{client[:_LONGEST_CLIENT]}…{sha256(client.encode()).hexdigest()}"
        found = self._known.get((user, kept))
        if found is None:
            self._forget_idle()
            found = self._known[user, kept] = {
                kind: self._budget(kind, key._replace(client=key.client and kept), value)
                for kind in Kind
                if (bound := self.quotas.bound(kind, user, client)) is not None
                for value, key in (bound,)
            }
        return found

    def _budget(self, kind: Kind, key: Key, bound: float) -> _Budget:
        former, now_ms = self._budgets.get((kind, key)), self.now_ms()
        made = _Budget(
            kind,
            key,
            bound,
            former.rate if former else Rate(self.windows),
            former.bucket if former else TokenBucket(self._mutation_windows, bound, now_ms),
        )
        self._budgets[kind, key] = made
        return made

    def _forget_idle(self) -> None:
        """Keep the number of clients and budgets small: any number of client ids may come."""
        if len(self._known) < _MOST_KNOWN and len(self._budgets) < self._next_look:
            return
        now_ms = self.now_ms()
        self._known.clear()
        for name, each in list(self._budgets.items()):
            if each.rate.is_idle(now_ms) and each.bucket.is_full(each.bound, now_ms):
                del self._budgets[name]
        self._next_look = max(_MOST_KNOWN, 2 * len(self._budgets))

    # --- controller mutations -----------------------------------------------------------------

    def _takes_mutations(self, call: Call, body: Any, budget: _Budget) -> bool:
        """Take a token for each partition; entries for which there is none are answered, not handled."""
        key, now_ms = call.api.key, self.now_ms()
        is_strict = call.version >= _STRICT_FROM[key]
        field = "topic_names" if key == _DELETE and call.version < _DELETE_BY_ID else "topics"
        kept: list[Any] = []
        refused: list[Any] = []
        for entry in getattr(body, field):
            cost = self._cost(key, entry)
            if cost and is_strict and budget.bucket.tokens(budget.bound, now_ms) < 0:
                refused.append(entry)
                continue
            if cost:
                budget.bucket.take(cost, budget.bound, now_ms)
            kept.append(entry)
        assert call.meter is not None, "made before"
        call.meter.refused = refused
        call.meter.has_mutations = bool(refused) or not is_strict
        setattr(body, field, kept)
        if refused and not kept:
            call.answer(call.api.response())
            return False
        return True

    def _cost(self, key: int, entry: Any) -> int:
        """Return how many partitions an entry makes or deletes; 0 if it will be refused."""
        topics = self._metadata.topics
        if key == _DELETE:
            name = entry if isinstance(entry, str) else entry.name
            return len(topics.get(name or self._metadata.topic_names.get(id_to_text(entry.topic_id), ""), ()))
        known = len(topics.get(entry.name, ()))
        if key == _GROW:
            return max(0, entry.count - known) if known else 0
        if known:
            return 0
        return len(entry.assignments) or max(entry.num_partitions, 0) or self._default_partitions


def _may_be_of_broker(key: int, body: Any) -> bool:
    """Return whether brokers send each other such requests: neither records nor a consumer's fetch."""
    if key != _FETCH:
        return key != _PRODUCE
    state = body.replica_state
    return bool((body.replica_id if state is None else state.replica_id) != CONSUMER_REPLICA_ID)


class Meter:
    """The usage of one request."""

    __slots__ = ("_began_s", "_busy_s", "_call", "_limiter", "_timed", "budgets", "has_mutations", "refused")

    def __init__(self, limiter: Limiter, call: Call, budgets: dict[Kind, _Budget]) -> None:
        self._limiter, self._call, self.budgets = limiter, call, budgets
        self.refused: list[Any] = []
        """Entries of the request that are answered THROTTLING_QUOTA_EXCEEDED (89)."""
        self.has_mutations = False
        """Whether the client waits until no tokens are missing."""
        self._busy_s: float | None = None
        self._began_s = 0.0
        if Kind.REQUEST in budgets:
            self._began_s = steady_s()
            self._timed, call.on_answer = call.on_answer, self._sent

    def handled(self) -> None:
        """The handler has returned; its answer may come later."""
        if self._busy_s is None:
            self._busy_s = steady_s() - self._began_s

    def limit_fetch(self, body: Any, bound: float) -> None:
        """Ask for no more than the quota allows in all windows together: else it could never be answered."""
        windows = self._limiter.windows
        most = int(min(bound * (windows.samples - 1) * windows.size_ms / 1000, 2**31 - 1))
        body.max_bytes = min(body.max_bytes, most)
        body.min_bytes = min(body.min_bytes, body.max_bytes)

    def end(self) -> None:
        """Record what a request without an answer (acks=0) used: its bytes alone."""
        if (budget := self.budgets.get(Kind.PRODUCE)) is not None:
            self._call.throttle_ms = self._used(budget, self._call.size, self._limiter.now_ms())

    def limit(self, body: Struct) -> Struct:
        """Record what the request used, decide how long its client is mute; return the answer to send."""
        call, now_ms = self._call, self._limiter.now_ms()
        if self.refused:
            getattr(body, _PLACES[call.api.key]).extend(map(self._refusal, self.refused))
        waits = []
        if (budget := self.budgets.get(Kind.PRODUCE)) is not None and call.api.key == _PRODUCE:
            waits.append(self._used(budget, call.size, now_ms))
        if (budget := self.budgets.get(Kind.REQUEST)) is not None:
            self.handled()
            assert self._busy_s is not None, "measured"
            self._began_s = steady_s()
            waits.append(min(self._used(budget, 100 * self._busy_s, now_ms), self._limiter.windows.size_ms))
        if (budget := self.budgets.get(Kind.MUTATION)) is not None and self.has_mutations:
            waits.append(self._counted(budget.kind, budget.bucket.throttle_ms(budget.bound, now_ms)))
        if isinstance(body, t.FetchResponse):
            return self._limit_answer(body, waits, now_ms)
        call.throttle_ms = max(waits, default=0)
        return body

    def _limit_answer(self, body: t.FetchResponse, waits: list[int], now_ms: int) -> t.FetchResponse:
        """Return the answer to a fetch, without records if its client is muted."""
        call, budget = self._call, self.budgets.get(Kind.FETCH)
        size = 0
        if budget is not None:
            size = sum(map(len, response_frame(body, call.version, call.correlation_id)))
            waits.append(self._used(budget, size, now_ms))
        call.throttle_ms = max(waits, default=0)
        if not call.throttle_ms:
            return body
        if budget is not None:
            budget.rate.record(-size, now_ms)
        session_id = self._limiter.take_back(body.session_id)
        return t.FetchResponse(error_code=body.error_code, session_id=session_id)

    def _used(self, budget: _Budget, amount: float, now_ms: int) -> int:
        budget.rate.record(amount, now_ms)
        return self._counted(budget.kind, budget.rate.throttle_ms(budget.bound, now_ms))

    def _counted(self, kind: Kind, throttle_ms: int) -> int:
        if throttle_ms:
            self._limiter.throttled[kind] += 1
            self._limiter.throttled_ms[kind] += throttle_ms
        return throttle_ms

    def _refusal(self, entry: Any) -> Struct:
        kind: Any = self._call.api.response.FIELDS[_PLACES[self._call.api.key]].element
        refused = refused_entry(kind, entry, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if "error_message" in kind.FIELDS:
            refused.error_message = _EXCEEDED  # type: ignore[attr-defined]
        return refused

    def _sent(self) -> None:
        """The answer is encoded and written: that time counts, but mutes nobody."""
        budget = self.budgets[Kind.REQUEST]
        budget.rate.record(100 * (steady_s() - self._began_s), self._limiter.now_ms())
        if self._timed is not None:
            self._timed()
