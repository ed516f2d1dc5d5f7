"""Mistakes put into the engine on purpose: seeds that notice none of them would mean nothing."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import pytest

from logstore.testing.runner import run
from tests.plants import PLANTS, planted

EVENTS = 2000
BUDGET = 500
PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"

# The first seed that noticed each, counted from 0, as it was found last.
FIRST_SEEDS: dict[str, int] = {
    "no-epoch-fence-on-fetch": 391,
    "epoch-resumed-after-a-loss": 2,
    "old-role-accepted": 462,
    "session-expiry-ignored": 27,
    "former-controller-obeyed": 69,
    "unknown-controller-obeyed": 1,
    "deletion-for-any-registration": 19,
    "departing-broker-readmitted": 129,
    "late-metadata-wins": 177,
    "dead-disk-kept-secret": 344,
    "former-registration-obeyed": 63,
    "min-insync-ignored": 0,
    "preferred-leader-out-of-sync": 7,
    "let-go-too-early": 8,
    "elected-outside-the-isr": 1,
    "losses-not-noticed": 15,
    "loss-forgotten-at-the-next-stop": 275,
    "zombie-controller-writes": 0,
    "unconditional-writes": 0,
    "epoch-not-raised": 0,
    "truncate-by-high-watermark": 1,
    "divergence-not-noticed": 7,
    "answer-without-epoch": 35,
    "diverging-answer-believed": 7,
    "append-below-the-end": 12,
    "epoch-not-noted-at-election": 39,
    "high-watermark-from-the-fastest": 0,
    "shrink-before-it-is-confirmed": 0,
    "expansion-not-counted": 10,
    "no-epoch-start-gate": 2,
    "anybody-joins": 0,
    "acknowledged-too-early": 0,
    "served-above-the-high-watermark": 0,
    "acknowledged-from-the-old-log": 3,
    "acknowledged-before-the-comparison": 53,
    "disowned-at-once": 21,
    "repeats-not-recognised": 6,
    "receipt-trusts-the-page-cache": 0,
    "deleted-on-the-leader-alone": 0,
    "deleted-above-the-high-watermark": 13,
    "recovery-without-checksums": 6,
    "flush-without-sync": 4,
    "followers-count-unflushed": 3,
    "clean-marker-left-behind": 6,
    "leader-counts-unflushed": 43,
    "replica-deleted-before-it-leaves": 0,
    "list-written-before-the-isr": 0,
    "superseded-replicas-forgotten": 38,
    "target-not-waited-for": 0,
    "reassignments-not-taken-up": 25,
    "unfenced-reassignment": 0,
    "request-removed-first": 13,
    "unfenced-deletion": 13,
    "any-list-proves-strays": 9,
    "settings-not-taken-over": 5,
    "joins-below-the-log-start": 89,
    "watermark-outlives-the-cut": 15,
    "promised-at-the-switch": 186,
    "deletion-ordered-once": 12,
    "dead-replica-not-waited-for": 9,
    "deletions-not-taken-up": 13,
    "order-for-another-topic-obeyed": 1,
    "movement-not-noticed": 0,
    "told-once": 103,
    "damage-only-noted": 8,
    "gaps-left-out": 6,
    "derived-files-not-compared": 2,
    "seal-of-what-the-disk-has": 431,
    "any-boot-believed": 1,
    "epoch-file-believed": 364,
}

# Rare ones, found by a seed that is not below 500.
LATE_SEEDS: dict[str, int] = {
    "cut-stops-at-the-log-start": 602,
    "answered-in-another-tenure": 1111,
    "dropped-session-believed": 529,
    "former-life-joins": 49,
    "batch-across-the-log-start-refused": 1688,
    "old-isr-answer-believed": 1367,
    "claims-outlive-the-switch": 2087,
    "no-new-epoch-for-new-replicas": 544,
    "ghost-believed": 894,
    "role-outlives-the-replica": 1103,
    "refuser-elected": 577,
    "served-before-the-comparison": 4459,
    "late-order-takes-back": 1834,
    "cut-where-damage-begins": 5909,
    "tail-of-a-kill-cut": 771,
    "mended-with-anything": 529,
}


def notices(seed: int) -> bool:
    """Whether the run is bad, and for what was planted: a plant that fits the engine no more is none."""
    report = run(seed, EVENTS)
    assert not re.search("TypeError|AttributeError|ValueError", report.violation), report.violation
    return not report.is_good


def test_each_has_its_seed_or_is_rare() -> None:
    """A plant without a seed would never be run."""
    assert {name for name, plant in PLANTS.items() if not plant.is_rare} == FIRST_SEEDS.keys()
    assert {name for name, plant in PLANTS.items() if plant.is_rare} == LATE_SEEDS.keys()
    assert len(FIRST_SEEDS) >= 40


def test_half_of_them_are_found_within_500_seeds() -> None:
    assert max(FIRST_SEEDS.values()) < BUDGET
    assert median(FIRST_SEEDS.values()) <= BUDGET


def test_the_page_lists_them_all() -> None:
    """Name and mistake; a seed that has moved is no reason to change the page."""
    page = PAGE.read_text()
    missing = [name for name, plant in PLANTS.items() if f"| {plant.mistake} | `{name}` |" not in page]
    assert not missing


@pytest.mark.simulation
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FIRST_SEEDS)
def test_a_mistake_is_noticed(name: str) -> None:
    """The recorded seed first. Any change of what the engine sends moves it: then the first of 500."""
    seeds = [FIRST_SEEDS[name], *range(BUDGET)]
    with planted(name):
        assert any(map(notices, seeds)), f"{name} is not noticed by {BUDGET} seeds"


@pytest.mark.simulation
def test_a_mistake_is_gone_afterwards() -> None:
    """Rules are switched off in this process, for the length of a block: nothing may stay behind."""
    before = run(3, 300)
    for name in PLANTS:
        with planted(name):
            pass
    assert run(3, 300) == before


def test_an_unknown_mistake_is_refused() -> None:
    with pytest.raises(KeyError), planted("no-such-thing"):
        pass


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", FIRST_SEEDS)
def test_each_is_found_within_500_seeds_from_the_start(name: str) -> None:
    """The search itself, as docs/simulation.md reports it."""
    with planted(name):
        found = next(filter(notices, range(BUDGET)), None)
    assert found is not None, name


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("name", LATE_SEEDS)
def test_a_rare_one_is_found_by_its_seed(name: str) -> None:
    """A seed with a theme: it moves with every change of what the engine sends, and of the themes."""
    with planted(name):
        assert notices(LATE_SEEDS[name])
