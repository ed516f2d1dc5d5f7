"""Checkpoints of a queue: what they keep, and those of another version."""

from __future__ import annotations

import pytest

from logstore.disk.errors import CorruptCheckpoint
from logstore.queue import checkpoint
from logstore.queue.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from logstore.queue.state import QueueState


def state() -> QueueState:
    found = QueueState.restored(9, [3, 5, 7], [1, 2, 4], [(5, 1_700_000_000_000), (7, 1_700_000_009_000)])
    for offset, until_ms in ((3, 1_700_000_030_000), (8, 1_700_000_031_000)):
        found.leases.set(offset, until_ms)
    found.cuts = 3
    return found


@pytest.mark.parametrize("is_shared", [False, True])
def test_it_keeps_the_state(is_shared: bool) -> None:
    """Leases only in a shared queue: elsewhere they end with their process."""
    data = encode_checkpoint(Checkpoint(state(), 17, 4, True, b"keys"), is_shared=is_shared)
    found, true = decode_checkpoint(data, "jobs.checkpoint"), state()
    assert found[1:] == (17, 4, True, b"keys")
    assert (found.state.next_offset, found.state.unfinished) == (9, {3: 1, 5: 2, 7: 4})
    assert [*found.state.delays.items()] == [*true.delays.items()]
    assert [*found.state.leases.items()] == [*true.leases.items()] * is_shared
    assert found.state.cuts == 3 * is_shared


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same parts may have another meaning in it."""
    with monkeypatch.context() as later:
        later.setattr(checkpoint, "VERSION", 2)
        data = encode_checkpoint(Checkpoint(state(), 17, 4, is_clean=True))
    with pytest.raises(CorruptCheckpoint, match=r"version 2 is not supported, only version 1"):
        decode_checkpoint(data, "jobs.checkpoint")
