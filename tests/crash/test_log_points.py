"""The power fails before every single call that a log makes of its disk, several ways at each.

Scripts cover what a log does: append, flush, roll, truncate, epochs, log start, stop and start, recovery
itself. Each image must open to what had been promised at that moment (`script.check`). The last tests
switch one rule of the sync order off each: a checker that never complains is not one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import EngineError
from logstore.testing.crash import CrashReport
from tests.crash import log_scripts
from tests.crash.script import (
    CONFIG,
    DIRECTORY,
    NOW_MS,
    ROOT,
    Image,
    Promise,
    Script,
    check,
    lab,
    log_parent,
    on_lab,
)


def append_async(run: Script) -> None:
    """Nothing is promised but order: what is found is a prefix."""
    for count in (1, 2, 1, 3, 1):
        run.append(count)


def append_durable(run: Script) -> None:
    for count in (1, 3, 2):
        run.append(count, sync=True)


def roll_by_size(run: Script) -> None:
    """Segments of three batches: several rolls, with and without a flush before them."""
    for number in range(14):
        run.append(1 + number % 2, sync=number % 5 == 4)


def roll_by_hand(run: Script) -> None:
    run.append(2)
    run.roll()
    run.append(sync=True)
    run.roll()
    run.roll()
    run.append(3)


def truncate_inside(run: Script) -> None:
    """At a batch's base, then inside a batch, with appends in the place of what went."""
    for _ in range(3):
        run.append(2, sync=True)
    run.truncate(4)
    run.append(3, sync=True)
    run.append(2)
    run.truncate(6)
    run.append(sync=True)
    run.append()


def truncate_across(run: Script) -> None:
    """Whole segments go, newest first; new ones take their names."""
    for number in range(12):
        run.append(2, sync=number == 7)
    run.truncate(5)
    run.append(sync=True)
    for _ in range(6):
        run.append(2)
    run.flush()
    run.truncate(3)
    run.append(2)


def truncate_inside_a_batch_then_roll(run: Script) -> None:
    """The log end lies past the last batch: a gap, and a segment that starts behind it."""
    run.append(3)
    run.append(3, sync=True)
    run.truncate(4)
    run.roll()
    run.append(sync=True)
    run.append(2)
    run.roll()
    run.append(sync=True)


def truncate_inside_the_first_batch(run: Script) -> None:
    """Nothing is left, and the log does not end where its only segment begins."""
    run.append(4, sync=True)
    run.truncate(2)
    run.append(3)
    run.append(2)
    run.flush()
    run.truncate(3)
    run.close_and_open()
    run.append(sync=True)


def all_below_the_start(run: Script) -> None:
    """Every record is deleted, and the newest epoch must outlive them."""
    run.append(2, epoch=0)
    run.append(2, epoch=3, sync=True)
    run.advance_start(4)
    run.close_and_open()
    run.crash_and_open()
    run.append(sync=True)
    run.truncate(4)
    run.append(sync=True)


def truncate_below_the_start(run: Script) -> None:
    """A leader that lost more than we had deleted: what is written anew lies below where the log began."""
    for _ in range(6):
        run.append(3)
    run.advance_start(14)
    run.truncate(12)
    run.append(2, sync=True)
    run.advance_start(13)
    run.truncate(4)
    run.append(sync=True)
    run.append(2)


def truncate_to_the_start(run: Script) -> None:
    for _ in range(8):
        run.append()
    run.flush()
    run.truncate(0)
    run.append(2, sync=True)


def restart_above(run: Script) -> None:
    """A follower whose leader has dropped all that it knew."""
    for _ in range(7):
        run.append(sync=True)
    run.truncate_fully(40)
    run.append(2, sync=True)
    run.append()


def restart_below(run: Script) -> None:
    for _ in range(7):
        run.append(sync=True)
    run.truncate_fully(2)
    run.append(2)
    run.append(sync=True)


def epochs(run: Script) -> None:
    """Leaderships that wrote, that wrote nothing, and that were truncated away."""
    run.append(2, epoch=0)
    run.append(sync=True, epoch=2)
    run.assign_epoch(4)
    run.append(2)
    run.append(epoch=5, sync=True)
    run.truncate(3)
    run.append(epoch=6)
    run.append(epoch=6, sync=True)
    run.truncate(2)
    run.append(epoch=7)


def log_start(run: Script) -> None:
    """Inside a batch, inside a later segment, and to the very end."""
    for _ in range(6):
        run.append(2)
    run.advance_start(1)
    run.append(sync=True)
    run.advance_start(8)
    run.append(2)
    run.advance_start(run.log.log_end_offset)
    run.append()
    run.append(sync=True)


def clean_stops(run: Script) -> None:
    for _ in range(4):
        run.append(2)
    run.close_and_open()
    run.append(sync=True)
    run.close_and_open()
    run.close_and_open()
    run.append()


def producers(run: Script) -> None:
    """Sequences and an aborted transaction, across a roll and a truncation."""
    run.produce(7, 0)
    run.produce(8, 0, transaction=True)
    run.produce(7, 1, sync=True)
    run.produce(8, 1, transaction=True)
    run.abort(8, sync=True)
    run.produce(7, 2)
    run.roll()
    run.produce(7, 3, sync=True)
    run.append(3)
    run.truncate(6)
    run.append(2, sync=True)
    run.append(sync=True)
    run.produce(7, 2)


def producers_truncated_away(run: Script) -> None:
    """What is known of a producer goes with its batches, also if old snapshots come back."""
    run.append(2)
    run.append(sync=True)
    for sequence in range(5):
        run.produce(9, sequence)
    run.close_and_open()
    run.truncate(3)
    for _ in range(8):
        run.append(sync=True)


def transactions(run: Script) -> None:
    """An abort is cut away, its transaction is open again and ends another time; one stays open."""
    run.produce(8, 0, transaction=True)
    run.append()
    run.abort(8, sync=True)
    run.append()
    run.truncate(2)
    run.roll()
    run.append(sync=True)
    run.produce(9, 0, transaction=True)
    run.abort(8)
    run.close_and_open()
    run.truncate(4)
    run.abort(8, sync=True)
    run.append(2, sync=True)


def two_crashes(run: Script) -> None:
    """The second one while the first is being recovered from: the images of the opening."""
    for number in range(9):
        run.append(1 + number % 3, sync=number == 4)
    run.crash_and_open()
    run.append(2)
    run.append(sync=True)
    run.truncate(2)
    run.append()
    run.crash_and_open()
    run.append()


def crash_after_log_start(run: Script) -> None:
    for _ in range(7):
        run.append()
    run.advance_start(5)
    run.crash_and_open()
    run.append(sync=True)


def retention_by_size(run: Script) -> None:
    """Several segments at once, then one, with files of the first still waiting; the last one as well."""
    for _ in range(13):
        run.append(2)
    run.maintain()
    run.append(3, sync=True)
    for _ in range(4):
        run.append()
    run.maintain()
    run.maintain(NOW_MS + CONFIG.file_delete_delay_ms)
    run.append(sync=True)


def retention_by_time(run: Script) -> None:
    """Everything is too old: a new segment begins before the others go, and the epochs end there."""
    run.append(2, epoch=1)
    for _ in range(8):
        run.append(epoch=3)
    run.maintain(NOW_MS + 10_000)
    run.append(2, sync=True)
    for _ in range(5):
        run.append()
    run.crash_and_open()
    run.maintain(NOW_MS + 10_000)
    run.close_and_open()
    run.append(sync=True)


def delete_records(run: Script) -> None:
    """Inside a batch, to the end of a segment, and all there is; the segments follow."""
    for _ in range(10):
        run.append(2)
    run.delete_records(3)
    run.maintain()
    run.append(sync=True)
    run.delete_records(12)
    run.maintain()
    run.crash_and_open()
    run.append(2)
    run.delete_records(-1)
    run.maintain()
    run.append(3, sync=True)
    run.append()


def retention_and_producers(run: Script) -> None:
    """Snapshots go with their segments, and what later ones say of producers stays true."""
    run.produce(7, 0)
    run.produce(8, 0, transaction=True)
    for sequence in range(1, 8):
        run.produce(7, sequence)
    run.abort(8)
    for sequence in range(8, 12):
        run.produce(7, sequence)
    run.maintain()
    run.produce(7, 12, sync=True)
    run.truncate(run.log.log_start_offset + 1)
    run.produce(9, 0, sync=True)


def preallocated(run: Script) -> None:
    """Files with zeros behind their batches: rolls, cuts, stops, and a stop with an empty segment."""
    roll_by_size(run)
    run.truncate(7)
    run.append(sync=True)
    run.append(2)
    run.close_and_open()
    run.append(sync=True)
    run.roll()
    run.close_and_open()
    run.append()
    run.crash_and_open()
    run.append(2, sync=True)


BY_SIZE = replace(CONFIG, retention_bytes=400)
BY_TIME = replace(CONFIG, retention_ms=5000, file_delete_delay_ms=0)
CONFIGS: dict[Callable[[Script], None], LogConfig] = {
    retention_by_size: BY_SIZE,
    retention_by_time: BY_TIME,
    retention_and_producers: BY_SIZE,
    preallocated: replace(CONFIG, preallocate=True),
    **log_scripts.CONFIGS,
}

SCRIPTS: list[Callable[[Script], None]] = [
    append_async,
    append_durable,
    roll_by_size,
    roll_by_hand,
    truncate_inside,
    truncate_across,
    truncate_inside_a_batch_then_roll,
    truncate_inside_the_first_batch,
    all_below_the_start,
    truncate_below_the_start,
    truncate_to_the_start,
    restart_above,
    restart_below,
    epochs,
    log_start,
    clean_stops,
    producers,
    transactions,
    producers_truncated_away,
    two_crashes,
    crash_after_log_start,
    retention_by_size,
    retention_by_time,
    delete_records,
    retention_and_producers,
    preallocated,
    *log_scripts.SCRIPTS,
]


def script_of(
    script: Callable[[Script], None], seed: int, forgets: Callable[[str, str], bool] | None = None
) -> Script:
    return Script(seed, config=CONFIGS.get(script, CONFIG), forgets=forgets)


def drawn(run: Script, script: Callable[[Script], None]) -> list[Image]:
    """The images of one run, each different one once."""
    script(run)
    different = {(frozenset(image.disk.files().items()), image.promise): image for image in run.images}
    return list(different.values())


def explored(script: Callable[[Script], None], **options: Any) -> CrashReport:
    config = CONFIGS.get(script, CONFIG)
    return lab(config=config, **options).explore(on_lab(script, config=config), Promise(), disk=log_parent)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_every_point(script: Callable[[Script], None]) -> None:
    """No image of any moment breaks a promise. One of each kind of file system; `make crash` takes four."""
    report = explored(script, images=1, kills=False)
    assert report.distinct > 10
    assert report.is_good, str(report)


def test_every_point_of_a_recovery() -> None:
    """Nor does one of a second crash, or of a process that is killed and started again."""
    report = explored(append_durable, images=2, second_images=1, depth=2)
    assert report.second > 300
    assert report.is_good, str(report)


RULES_OFF: dict[str, tuple[Callable[[str, str], bool], Callable[[Script], None]]] = {
    "batches are not synced": (lambda call, path: path.endswith(".log"), append_durable),
    "batches are not synced at a roll": (lambda call, path: path.endswith(".log"), roll_by_size),
    "nor at a truncation": (lambda call, path: path.endswith(".log"), truncate_inside),
    "a new segment's name is not": (lambda call, path: (call, path) == ("sync_dir", DIRECTORY), roll_by_hand),
    "nor a removed one's": (lambda call, path: (call, path) == ("sync_dir", DIRECTORY), truncate_across),
    "nor a removed mark's": (lambda call, path: (call, path) == ("sync_dir", DIRECTORY), clean_stops),
    "nor a removed snapshot's": (
        lambda call, path: (call, path) == ("sync_dir", DIRECTORY),
        producers_truncated_away,
    ),
    "a new log's name is not": (lambda call, path: (call, path) == ("sync_dir", ROOT), append_durable),
    "the log start is not": (lambda call, path: path.endswith("start-offset-checkpoint.tmp"), log_start),
    "nor is it before records are deleted (S6)": (
        lambda call, path: path.endswith("start-offset-checkpoint.tmp"),
        delete_records,
    ),
    "nor before old segments go (S6)": (
        lambda call, path: path.endswith("start-offset-checkpoint.tmp"),
        retention_by_size,
    ),
    "what is quarantined is not": (lambda call, path: call == "sync" and "/lost/" in path, truncate_inside),
    "the ledger is not": (lambda call, path: path.endswith(".jsonl"), truncate_across),
    "nor the names in quarantine": (
        lambda call, path: call == "sync_dir" and "/lost" in path,
        truncate_inside,
    ),
    # Its seal alone would tell that they are gone.
    "aborts of a sealed segment are not, nor its seal": (
        lambda call, path: ".txnindex" in path or path.endswith(".seal"),
        producers,
    ),
}


@pytest.mark.parametrize("name", RULES_OFF)
def test_the_checker_notices_a_rule_that_is_off(name: str) -> None:
    """The same scripts on a disk that skips one kind of sync: some image must break a promise."""
    forgets, script = RULES_OFF[name]
    for seed in range(5):
        try:
            run = script_of(script, seed, forgets)
            for image in drawn(run, script):
                check(image, config=run.config)
        except (AssertionError, EngineError):
            return
    raise AssertionError(f"nobody noticed that {name}")
