"""Planted mistakes: with each of them, some row is not there once, and the campaign must say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.spark import ledger
from logstore.spark.jobs import compact, export, repair, replay, stream
from logstore.spark.ledger import Entry, Ledger
from logstore.spark.tier import MANIFEST as MANIFEST_FILE
from logstore.spark.tier import Manifest, Tier
from tests.spark.job_kills.cases import Case
from tests.spark.job_kills.strikes import AMID, BEFORE, COPIED, MANIFEST

Mistake = Callable[[pytest.MonkeyPatch], None]


def forget_intents(patch: pytest.MonkeyPatch) -> None:
    """A run does not complete what the one before left open; it begins anew, with another producer."""

    def forget(held: Ledger, _: Any) -> None:
        kept = {name: value for name, value in held.state.items() if name in ("kept", "offsets", "columns")}
        held._entry = Entry(held.done, kept, None)

    for module in (ledger, export, replay):
        patch.setattr(module, "complete", forget)


def keep_leftovers(patch: pytest.MonkeyPatch) -> None:
    """A run does not remove what the one before has staged or copied."""
    for module in (stream, compact):
        patch.setattr(module, "remove_staged", lambda *_: None)
    patch.setattr(repair, "remove_tree", lambda *_: None)


def write_in_place(patch: pytest.MonkeyPatch) -> None:
    """A manifest is not replaced as a whole."""

    def put(tier: Tier, partition: TopicPartition, manifest: Manifest) -> None:
        tier.files.pipe_file(tier.path(partition, MANIFEST_FILE), manifest.encode())

    patch.setattr(Tier, "put_manifest", put)


MISTAKES: Final[dict[str, tuple[Mistake, str]]] = {
    "tier": (write_in_place, MANIFEST),
    "export": (forget_intents, AMID),
    "replay": (forget_intents, AMID),
    "ingest": (forget_intents, AMID),
    "stream": (keep_leftovers, BEFORE),
    "compact": (keep_leftovers, BEFORE),
    "compact-segments": (keep_leftovers, BEFORE),
    "repair": (keep_leftovers, COPIED),
}
"""Of each job, a mistake and the step after which it shows."""


def mistaken_kinds(case: Case) -> list[tuple[str, str]]:
    return [(MISTAKES[case.name][1], "kill")]
