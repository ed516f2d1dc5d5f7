"""The keys of a shared queue's messages: which message has a key, and who may store one. Pure.

The keys are in the events of a topic, so all processes agree on them:

    claim      a process will store messages with these keys, unless a message of the window has them
    stored     the messages with these keys are at these offsets
    released   the put of a claim failed: others may store its messages
    ended      a claim has expired, and its messages, if there are any, are known

    ┌─────────────────┬──────────────────────────────────────────────────────────┐
    │ claim           │ now_ms, window_ms: int64; an identity for each key       │
    │ stored          │ now_ms, window_ms; for each key offset: int64, identity  │   big-endian
    │ released, ended │ the offset of the claim's event: int64                   │
    └─────────────────┴──────────────────────────────────────────────────────────┘

The first claim of a key holds until the message is stored, and for 30 seconds at most: its process may be
dead. The next process that claims the key looks for a message that was stored since (`since_ms`). Messages of
that time are not deleted, unless the claim has ended. The identity of a key has 32 bytes, whatever the key's
size.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple, Self

from logstore.errors import InvalidRecord
from logstore.queue.recent_keys import RecentKeys

CLAIM: Final = b"claim"
STORED: Final = b"stored"
RELEASED: Final = b"released"
ENDED: Final = b"ended"
KINDS: Final = frozenset((CLAIM, STORED, RELEASED, ENDED))
"""The keys of the events' records; records of other events have none."""
CLAIM_MS: Final = 30_000

_HEAD: Final = struct.Struct(">qq")
_OFFSET: Final = struct.Struct(">q")
_SIZE: Final = 32


def identity_of(key: bytes) -> bytes:
    """Return the 32 bytes that stand for a key."""
    return blake2b(key, digest_size=_SIZE).digest()


def claim(keys: Iterable[bytes], now_ms: int, window_ms: int) -> bytes:
    """Return the value of a `claim`, of identities."""
    return _HEAD.pack(now_ms, window_ms) + b"".join(keys)


def stored(offsets: Mapping[bytes, int], now_ms: int, window_ms: int) -> bytes:
    """Return the value of a `stored`: the offset of the message with each identity."""
    return _HEAD.pack(now_ms, window_ms) + b"".join(
        _OFFSET.pack(offset) + key for key, offset in offsets.items()
    )


def released(number: int) -> bytes:
    """Return the value of a `released` or `ended`, of the claim whose event is at offset `number`."""
    return _OFFSET.pack(number)


class Claim(NamedTuple):
    """A claim of a key: the offset of its event, and its time.

    `since_ms` is the time of the first claim before it that ended without a message; None if none did.
    """

    number: int
    at_ms: int
    since_ms: int | None = None
    is_released: bool = False

    @property
    def first_ms(self) -> int:
        """The time from which on there may be a message with the key."""
        return self.at_ms if self.since_ms is None else self.since_ms


class SharedKeys:
    """The known and claimed keys after some events. Times are epoch milliseconds by the senders' clocks."""

    __slots__ = ("_claims", "_recent", "now_ms")

    def __init__(self) -> None:
        self._recent = RecentKeys(0)
        self._claims: dict[bytes, Claim] = {}
        """Of keys without a message, oldest first; those that are over are leftovers."""
        self.now_ms = 0
        """The time of the last event."""

    def __len__(self) -> int:
        return len(self._recent) + len(self._claims)

    def find(self, key: bytes) -> int | None:
        """Return the offset of the message that has the identity, as of the last event; None without one."""
        return self._recent.last(key)

    @property
    def window_ms(self) -> int:
        """The window of the last event."""
        return self._recent.window_ms

    def claim_of(self, key: bytes) -> Claim | None:
        """Return the latest claim of a key that has no message; it may be over."""
        return self._claims.get(key)

    def is_claimed(self, key: bytes, now_ms: int) -> bool:
        """Return whether a process may be storing a message with the key."""
        found = self._claims.get(key)
        if found is None or found.is_released:
            return False
        return abs(now_ms - found.at_ms) < min(CLAIM_MS, self._recent.window_ms)

    def since(self) -> int | None:
        """Return since when the messages of claims may be in the log; None if there are no claims."""
        return min((found.first_ms for found in self._claims.values()), default=None)

    def over(self) -> dict[bytes, Claim]:
        """Return the claims whose messages are in the log by now, or will never be."""
        now_ms = self.now_ms
        return {key: found for key, found in self._claims.items() if abs(now_ms - found.at_ms) >= CLAIM_MS}

    # --- events ---------------------------------------------------------------------------------------

    def apply(self, kind: bytes, value: bytes | None, offset: int) -> None:
        """Learn what the event at `offset` tells. Raises `InvalidRecord`."""
        data = value or b""
        try:
            if kind in (RELEASED, ENDED):
                self._end(*_OFFSET.unpack(data), is_over=kind == ENDED)
                return
            self.now_ms, self._recent.window_ms = _HEAD.unpack_from(data)
            if kind == CLAIM:
                for (key,) in struct.iter_unpack(f"{_SIZE}s", data[_HEAD.size :]):
                    self._claim(key, offset)
            else:
                for at, key in struct.iter_unpack(f">q{_SIZE}s", data[_HEAD.size :]):
                    self._recent.remember(key, at, self.now_ms)
                    self._claims.pop(key, None)
        except struct.error as error:
            raise InvalidRecord(f"the event at offset {offset} is not a {kind.decode()}: {error}") from error

    def _claim(self, key: bytes, number: int) -> None:
        now_ms = self.now_ms
        if self._recent.find(key, now_ms) is not None or self.is_claimed(key, now_ms):
            return
        for other in list(self._leftovers()):
            del self._claims[other]
        before = self._claims.pop(key, None)
        self._claims[key] = Claim(number, now_ms, None if before is None else before.first_ms)

    def _leftovers(self) -> Iterator[bytes]:
        """Yield the oldest claims whose messages would be older than the window."""
        for key, found in self._claims.items():
            if abs(self.now_ms - found.first_ms) < self._recent.window_ms:
                return
            yield key

    def _end(self, number: int, *, is_over: bool) -> None:
        for key in [key for key, found in self._claims.items() if found.number == number]:
            if is_over:
                del self._claims[key]
            else:
                self._claims[key] = self._claims[key]._replace(is_released=True)

    def end(self) -> int:
        """Return the offset past the last known message; 0 without any."""
        return self._recent.end()

    def forget_from(self, end_offset: int) -> None:
        """Forget messages at or past `end_offset`, which a power cut removed."""
        self._recent.forget_from(end_offset)

    # --- in a checkpoint ------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return all of it: the size of a JSON object with the claims, the object, and the known keys."""
        if not len(self):
            return b""
        claims = [[key.hex(), *found] for key, found in self._claims.items()]
        head = json.dumps({"now_ms": self.now_ms, "window_ms": self._recent.window_ms, "claims": claims})
        return _OFFSET.pack(len(head)) + head.encode() + self._recent.encode(self.now_ms)

    @classmethod
    def decoded(cls, data: bytes) -> Self:
        """Return what `encode` wrote. Raises `InvalidRecord` for anything else."""
        made = cls()
        if not data:
            return made
        try:
            end = _OFFSET.size + _OFFSET.unpack_from(data)[0]
            head = json.loads(data[_OFFSET.size : end])
            made.now_ms, made._recent.window_ms = head["now_ms"], head["window_ms"]
            made._claims = {bytes.fromhex(key): Claim(*found) for key, *found in head["claims"]}
            made._recent.add_encoded(data[end:])
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise InvalidRecord(f"not the keys of a shared queue: {error}") from error
        return made
