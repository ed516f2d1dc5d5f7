"""Mistakes put into the engine on purpose: seeds that notice none of them would mean nothing."""

from __future__ import annotations

import pytest

from simulation.planted import PLANTS, planted
from simulation.runner import run

EVENTS = 2000
BUDGET = 500

# The first seed that noticed each, counted from 0, as it was found last.
FIRST_SEEDS = {
    "truncate-by-high-watermark": 0,
    "divergence-not-noticed": 18,
    "answer-without-epoch": 35,
    "diverging-answer-believed": 7,
    "append-below-the-end": 7,
    "epoch-not-noted-at-election": 34,
    "high-watermark-from-the-fastest": 0,
    "shrink-before-it-is-confirmed": 0,
    "expansion-not-counted": 1,
    "no-epoch-start-gate": 1,
    "anybody-joins": 0,
    "no-epoch-fence-on-fetch": 116,
    "acknowledged-too-early": 0,
    "min-insync-ignored": 0,
    "served-above-the-high-watermark": 0,
    "epoch-resumed-after-a-loss": 2,
    "elected-outside-the-isr": 5,
    "losses-not-noticed": 2,
    "loss-forgotten-at-the-next-stop": 132,
    "zombie-controller-writes": 0,
    "unconditional-writes": 0,
    "epoch-not-raised": 0,
    "repeats-not-recognised": 0,
    "joins-below-the-log-start": 233,
    "cut-stops-at-the-log-start": 89,
    "recovery-without-checksums": 2,
    "flush-without-sync": 3,
    "followers-count-unflushed": 4,
    "clean-marker-left-behind": 6,
}


def test_there_are_at_least_ten_and_each_has_its_seed() -> None:
    """A plant without a seed would never be run."""
    assert {name for name, plant in PLANTS.items() if not plant.is_rare} == FIRST_SEEDS.keys()
    assert len(FIRST_SEEDS) >= 10


@pytest.mark.simulation
@pytest.mark.parametrize("name", FIRST_SEEDS)
def test_a_mistake_is_noticed(name: str) -> None:
    """The recorded seed first. Any change of what the engine sends moves it: then the first of 500."""
    seeds = [FIRST_SEEDS[name], *range(BUDGET)]
    with planted(name):
        assert any(not run(seed, EVENTS).is_good for seed in seeds), (
            f"{name} is not noticed by {BUDGET} seeds"
        )


@pytest.mark.simulation
@pytest.mark.parametrize("name", PLANTS)
def test_a_mistake_is_gone_afterwards(name: str) -> None:
    """Rules are switched off in this process, for the length of a block: nothing may stay behind."""
    before = run(3, 300)
    with planted(name):
        pass
    assert run(3, 300) == before


def test_an_unknown_mistake_is_refused() -> None:
    with pytest.raises(KeyError), planted("no-such-thing"):
        pass


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST_SEEDS)
def test_each_is_found_within_500_seeds_from_the_start(name: str) -> None:
    """The search itself, as docs/simulation.md reports it."""
    with planted(name):
        found = next((seed for seed in range(BUDGET) if not run(seed, EVENTS).is_good), None)
    assert found is not None, name
