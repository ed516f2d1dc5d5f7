"""Operations in an order that nobody thought of: drawn from a seed, the power cut before every call.

What `test_log_points.py` does for scripts with a point, for scripts without one. A seed that finds something
becomes a script there.
"""

from __future__ import annotations

from random import Random

import pytest

from checkpoint.errors import EngineError
from tests.crash.script import Script, check
from tests.crash.test_log_points import drawn


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
                epoch = max(run.log.latest_epoch, 0) + (random.random() < 0.15)
                run.append(random.randint(1, 4), sync=sync, epoch=epoch)
            case "produce":
                producer = random.randint(1, 3)
                known = run.log._producers.get(producer)
                run.produce(producer, 0 if known is None else known.last_sequence + 1, sync=sync)
            case "flush":
                run.flush()
            case "roll":
                run.roll()
            case "epoch":
                run.assign_epoch(run.log.latest_epoch + random.randint(1, 2))
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
@pytest.mark.parametrize("seed", [29, 75, 169, 207, *range(100, 108)])
def test_any_order(seed: int) -> None:
    """No image of any moment breaks a promise."""
    images = drawn(Script(seed, images_a_call=1), any_operations)
    for number, image in enumerate(images):
        try:
            check(image, goes_on=number % 6 == 0)
        except (AssertionError, EngineError) as error:
            raise AssertionError(f"seed {seed}, power cut before {image.call}: {error}") from error
