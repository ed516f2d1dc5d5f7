"""Operations in an order that nobody thought of: every sequence of up to three, and longer ones from a seed.

What `test_log_points.py` does for scripts with a point, for scripts without one. The sequences are all
there are over an alphabet of twelve operations: 12 + 144 + 1,728. What finds something becomes a script
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from random import Random
from typing import Any

import pytest

from logstore.testing.crash import CrashReport
from tests.crash.script import Promise, Script, lab, log_parent, on_lab

LETTERS: dict[str, Callable[[Script], None]] = {
    "append": lambda run: run.append(2),
    "append and sync": lambda run: run.append(sync=True),
    "append three": lambda run: _append_three(run),
    "produce": lambda run: _produce(run),
    "flush": lambda run: run.flush(),
    "roll": lambda run: run.roll(),
    "new epoch": lambda run: run.append(epoch=run.log.partition.latest_epoch + 1),
    "truncate": lambda run: run.truncate(_middle(run)),
    "restart above": lambda run: run.truncate_fully(run.log.log_end_offset + 3),
    "move the start": lambda run: run.advance_start(_middle(run)),
    "close and open": lambda run: run.close_and_open(),
    "crash and open": lambda run: run.crash_and_open(),
}


def _append_three(run: Script) -> None:
    for _ in range(3):
        run.append()


def _produce(run: Script) -> None:
    known = run.log.partition.producer_state.get(1)
    run.produce(1, 0 if known is None else known.last_sequence + 1)


def _middle(run: Script) -> int:
    return (run.log.log_start_offset + run.log.log_end_offset) // 2


def sequences(longest: int = 3) -> list[tuple[str, ...]]:
    """Every sequence of one to `longest` operations."""
    return [letters for length in range(1, longest + 1) for letters in product(LETTERS, repeat=length)]


def of(letters: Iterable[str]) -> Callable[[Script], None]:
    """The script that does these, on a log that holds a few batches: an empty one has little to lose.

    The lab looks on while the last one is done: the moments before it are those of a shorter sequence.
    """

    def script(run: Script) -> None:
        run.watch(False)
        run.append(2, sync=True)
        run.append()
        *others, last = letters
        for letter in others:
            LETTERS[letter](run)
        run.watch(True)
        LETTERS[last](run)

    return script


def explored(chosen: Iterable[tuple[str, ...]], **options: Any) -> Iterator[CrashReport]:
    """One report a sequence. One lab for all: what they have in common is recovered once."""
    shared = lab(**options)
    for letters in chosen:
        yield shared.explore(on_lab(of(letters)), Promise(), name=", ".join(letters), disk=log_parent)


def test_there_are_1884() -> None:
    assert len(LETTERS) == 12
    assert len(sequences()) == 1884


def test_a_sample_of_all_short_sequences() -> None:
    """Each fortieth; `make crash` takes them all."""
    for report in explored(sequences()[::40], images=2, kills=False):
        assert report.is_good, str(report)


def test_a_restart_of_a_log_whose_start_is_not_written_down() -> None:
    """Truncated inside its first batch, recovered, started anew above: a crash in that leaves start 0."""
    (report,) = explored([("truncate", "crash and open", "restart above")], images=4, kills=False)
    assert report.is_good, str(report)


def any_operations(run: Script, *, count: int = 14) -> None:
    """`count` operations, each of which the log's state allows."""
    random = Random(f"operations {run.seed}")
    for _ in range(count):
        start, end = run.log.log_start_offset, run.log.log_end_offset
        sync = random.random() < 0.3
        choice = random.choices(
            ["append", "produce", "flush", "roll", "epoch", "truncate", "start", "restart", "close", "crash"],
            [30, 12, 5, 8, 6, 12, 7, 2, 5, 4],
        )[0]
        match choice:
            case "append":
                epoch = max(run.log.partition.latest_epoch, 0) + (random.random() < 0.15)
                run.append(random.randint(1, 4), sync=sync, epoch=epoch)
            case "produce":
                producer = random.randint(1, 3)
                known = run.log.partition.producer_state.get(producer)
                run.produce(producer, 0 if known is None else known.last_sequence + 1, sync=sync)
            case "flush":
                run.flush()
            case "roll":
                run.roll()
            case "epoch":
                run.assign_epoch(run.log.partition.latest_epoch + random.randint(1, 2))
            case "truncate":
                run.truncate(random.randint(start, end))
            case "start":
                run.advance_start(random.randint(start, end))
            case "restart":
                run.truncate_fully(random.randint(max(0, start - 3), end + 5))
            case "close":
                run.close_and_open()
            case _:
                run.crash_and_open()


# Seeds that found something, and some that have not.
SEEDS = (29, 75, 169, 207, *range(100, 104))


@pytest.mark.parametrize("seed", SEEDS)
def test_any_order(seed: int) -> None:
    """No image of any moment breaks a promise."""
    report = lab(images=1, kills=False).explore(on_lab(any_operations, seed), Promise(), disk=log_parent)
    assert report.is_good, f"seed {seed}: {report}"
