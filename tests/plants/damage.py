"""Mistakes with damage: what is served, what is mended with what, who is told."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from logstore.log import heal
from logstore.replication import healing
from logstore.segment.scan import scan_buffer
from logstore.testing.stories.rules import swap
from tests.plants.registry import plant


@plant("damage is noted, and nobody is asked for sound batches (decision 056)")
def damage_only_noted(stack: ExitStack) -> None:
    swap(stack, healing, "pump", lambda manager, now_ms: None)


@plant("a mended segment takes whatever batches are sent (decision 056)")
def mended_with_anything(stack: ExitStack) -> None:
    def take(self: Any, cleaned: Any, found: Any, at: int, wanted: Any, *, must_fill: bool) -> int:
        scanned = scan_buffer(found.records, len(found.records))
        cleaned.append(bytes(found.records[: scanned.end]), heal._extents(scanned.headers))
        self._fetched += len(scanned.headers)
        return int(wanted.end_offset)

    swap(stack, heal._Mending, "_take", take)


@plant("a mending leaves the damaged offsets out and fetches nothing (decision 056)")
def gaps_left_out(stack: ExitStack) -> None:
    def fetch(self: Any, cleaned: Any, gap: Any) -> Any:
        return
        yield

    swap(stack, heal._Mending, "_fetch", fetch)
