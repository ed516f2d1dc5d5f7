"""The mutants of queues: mistakes by which a message is lost, stored twice or delivered again."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Area, of

_SHARED: Final = tuple(f"tests/broker/test_shared_{name}.py" for name in ("queue", "checkpoints", "keys"))
QUEUES: Final = [
    *of(
        Area.QUEUES,
        "logstore/broker/shared_lane.py",
        _SHARED,
        (
            "others-events-are-skipped",
            "is_next = offset == self._position",
            "is_next = offset >= self._position",
        ),
        (
            "a-look-serves-for-ever",
            "0 <= now_ms - self._read_ms <= _FRESH_MS",
            "0 <= now_ms - self._read_ms",
        ),
        (
            "messages-of-claims-are-deleted",
            "low_mark = min(low_mark, first.offset)",
            "low_mark = old.low_mark",
        ),
        (
            "deletes-what-the-last-checkpoint-lets-go",
            "events_offset <= self._position - CHECKPOINT_EVENTS",
            "events_offset <= self._position",
        ),
        ("no-keys-in-checkpoints", "keys=self.keys.encode()", 'keys=b""'),
        (
            "a-put-does-not-tell-of-a-loss",
            "if offsets[0] < self.state.next_offset:",
            "if offsets[-1] < self.state.next_offset - len(offsets):",
        ),
        ("delivers-what-a-loss-replaced", "if self.state.cuts == cuts:", "if self.state.cuts >= cuts:"),
        (
            "a-lease-that-nobody-read",
            "return event.kind is EventKind.FINISHED and state",
            "return state",
        ),
        (
            "a-checkpoint-that-needs-deleted-events",
            "if found.events_offset >= start:",
            "if found.events_offset <= start:",
        ),
        (
            "keys-of-lost-messages-stay",
            "self.keys.forget_from(changed[0])",
            "self.keys.forget_from(self.state.next_offset + 1)",
        ),
        (
            "a-claim-ends-without-its-message",
            "        if found:\n            self.tell(STORED",
            "        if not found:\n            self.tell(STORED",
        ),
    ),
    *of(
        Area.QUEUES,
        "logstore/broker/shared_keys.py",
        ("tests/broker/test_shared_keys.py",),
        (
            "a-known-key-is-claimed",
            "if self._recent.find(key, now_ms) is not None or self.is_claimed(key, now_ms):",
            "if self.is_claimed(key, now_ms):",
        ),
        (
            "the-last-claim-wins",
            "if self._recent.find(key, now_ms) is not None or self.is_claimed(key, now_ms):",
            "if self._recent.find(key, now_ms) is not None:",
        ),
        (
            "claims-last-as-long-as-the-window",
            "< min(CLAIM_MS, self._recent.window_ms)",
            "< self._recent.window_ms",
        ),
        (
            "looks-since-the-last-claim",
            "None if before is None else before.first_ms",
            "None if before is None else before.at_ms",
        ),
        ("ends-the-heirs-claim", "if found.number == number]", "if found.number >= number]"),
        ("live-claims-are-over", "abs(now_ms - found.at_ms) >= CLAIM_MS}", "abs(now_ms - found.at_ms) >= 0}"),
    ),
    *of(
        Area.QUEUES,
        "logstore/broker/shared_puts.py",
        ("tests/broker/test_shared_keys.py",),
        ("stores-what-it-has-found", "or (each in ours and each not in known)", "or each in ours"),
        (
            "a-failed-put-keeps-its-claim",
            "        if ours:\n            with suppress",
            "        if not ours:\n            with suppress",
        ),
        ("a-repetition-in-one-call-is-stored", "waiting.setdefault(each, record)", "waiting[each] = record"),
    ),
    *of(
        Area.QUEUES,
        "logstore/queue/state.py",
        ("tests/queue/test_state.py", "tests/queue/test_queue.py", *_SHARED),
        (
            "two-have-one-delivery",
            "case EventKind.TAKEN if deliveries > known:",
            "case EventKind.TAKEN if deliveries >= known:",
        ),
        (
            "more-are-taken-than-wanted",
            "kind, most, offsets = EventKind.TAKEN, offsets[0], offsets[1:]",
            "kind, offsets = EventKind.TAKEN, offsets[1:]",
        ),
        (
            "an-old-end-counts",
            "case EventKind.FINISHED if deliveries >= known or not deliveries:",
            "case EventKind.FINISHED:",
        ),
        (
            "an-old-return-counts",
            "case EventKind.RETURNED if deliveries >= known:",
            "case EventKind.RETURNED:",
        ),
        (
            "an-extended-lease-ends",
            "case EventKind.ENDED if deliveries == known and self.leases.is_due(offset, time_ms):",
            "case EventKind.ENDED if deliveries == known and offset in self.leases:",
        ),
        (
            "an-extended-message-is-given-up",
            "case EventKind.GIVEN_UP if deliveries == known + 1 and self.leases.is_due(offset, time_ms):",
            "case EventKind.GIVEN_UP if deliveries == known + 1:",
        ),
        ("a-loss-counts-twice", "if deliveries != self.cuts + 1:", "if deliveries > self.cuts + 1:"),
        (
            "an-ended-lease-is-extended",
            "case EventKind.EXTENDED if deliveries == known and offset in self.leases:",
            "case EventKind.EXTENDED if deliveries == known:",
        ),
        (
            "skipped-messages-are-finished",
            "            self.unfinished.update(dict.fromkeys(between, 0))\n",
            "",
        ),
    ),
]
