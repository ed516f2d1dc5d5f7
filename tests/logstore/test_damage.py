"""One judge of damage: the decision over all its inputs."""

from __future__ import annotations

from itertools import product

from logstore.segment.damage import Verdict, judge
from logstore.segment.scan import Fault


def test_the_verdict_over_all_inputs() -> None:
    """Durable bytes are damage, bytes with batches behind them, and garbage if no durable point is known."""
    for fault, is_end, below_durable in product(Fault, (False, True), (None, False, True)):
        is_damage = (
            below_durable is True
            or not is_end
            or (below_durable is None and fault not in (Fault.TORN, Fault.ZEROS))
        )
        found = judge(fault, is_end=is_end, below_durable=below_durable)
        assert found is (Verdict.DAMAGE if is_damage else Verdict.TORN_TAIL), (fault, is_end, below_durable)


def test_no_fault_is_sound() -> None:
    """Wherever the walk ended."""
    for is_end, below_durable in product((False, True), (None, False, True)):
        assert judge(None, is_end=is_end, below_durable=below_durable) is Verdict.SOUND
