"""Seeds that must stay good: a first few, and for ever those that once were not."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from logstore.replication.durability import Durability
from logstore.testing.runner import run
from logstore.testing.swarm import COMMAND_NAMES, FAULT_NAMES, Features, draw, stream

EVENTS = 2000
SEEDS = range(1, 31)
MORE_SEEDS = range(31, 201)

# Seeds that found something; TRACK_RECORD.md says what. What a seed does changes when the engine sends one
# message more, so each finding of a mistake in the engine is a plant as well (test_planted.py).
ONCE_BAD = (133, 147, 177, 233, 240, 270, 573, 645, 203011)


def check(seed: int) -> None:
    report = run(seed, EVENTS)
    assert report.is_good, "\n".join([*report.last_events, f"seed {seed}: {report.violation}"])


@pytest.mark.simulation
@pytest.mark.parametrize("seed", SEEDS)
def test_seed(seed: int) -> None:
    """Safety under this seed's faults, progress once they end, and everything read back."""
    check(seed)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", MORE_SEEDS)
def test_another_seed(seed: int) -> None:
    check(seed)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", ONCE_BAD)
def test_seed_that_was_bad_once(seed: int) -> None:
    check(seed)


@pytest.mark.simulation
@pytest.mark.slow
def test_five_hundred_seeds() -> None:
    """What `make simulate` runs, for those who have only pytest."""
    for seed in range(1, 501):
        check(seed)


def test_a_swarm_switches_half_of_its_features_off() -> None:
    """Each feature is on in about half of the seeds, independent of the others."""
    swarms = [draw(seed) for seed in range(400)]
    for each in fields(Features):
        share = sum(getattr(swarm.features, each.name) for swarm in swarms) / len(swarms)
        assert 0.4 < share < 0.6, each.name
    for name in FAULT_NAMES:
        share = sum(swarm.rates[name] > 0 for swarm in swarms) / len(swarms)
        assert 0.33 < share < 0.6, name  # in one of seven seeds few things happen, and often
    assert len({swarm.rates["kill"] for swarm in swarms}) > 3, "rates differ from seed to seed"
    assert {swarm.durability for swarm in swarms} == set(Durability)
    assert all(swarm.replication_factor <= swarm.nodes for swarm in swarms)
    assert any(swarm.unclean_election for swarm in swarms)


def test_concerns_draw_from_streams_of_their_own() -> None:
    """Taking one fault out of a seed must not change what the others do."""
    assert stream(3, "network").random() == stream(3, "network").random()
    assert stream(3, "network").random() != stream(3, "disks").random()
    assert stream(3, "network").random() != stream(4, "network").random()


@pytest.mark.simulation
def test_a_quiet_world_loses_nothing_and_elects_once() -> None:
    """With every feature off, a seed is a plain cluster: one election, every acks=all answered."""
    quiet = Features(**{each.name: False for each in fields(Features)})
    rates = dict.fromkeys(FAULT_NAMES, 0.0)
    swarm = replace(
        draw(7),
        features=quiet,
        rates=rates,
        command_rates=dict.fromkeys(COMMAND_NAMES, 0.0),
        hand_rates={},
        partitions=1,
        drop_rate=0.0,
        duplicate_rate=0.0,
        slow_rate=0.0,
        store_loss_rate=0.0,
        unclean_election=False,
        delay_ms=1,
        session_timeout_ms=500,
        request_timeout_ms=300,
    )
    report = run(7, EVENTS, swarm=swarm)
    assert report.is_good, report.violation
    assert report.tally.elections == 1
    assert report.tally.sessions_expired == report.tally.truncations == 0


@pytest.mark.simulation
def test_a_rack_without_power_loses_nothing_that_was_synced() -> None:
    """Durability `synced`: all machines may lose their power at once, as often as they like."""
    power_cuts = 0
    for seed in range(1, 9):
        swarm = draw(seed)
        rates = {**swarm.rates, "power_cut": 4.0, "rack_power_cut": 2.0, "kill": 2.0, "pause": 0.0}
        swarm = replace(
            swarm,
            rates=rates,
            hand_rates={},
            durability=Durability.SYNCED,
            unclean_election=False,
            reckless=True,
        )
        report = run(seed, EVENTS, swarm=swarm)
        assert report.is_good, f"seed {seed}: {report.violation}"
        power_cuts += report.tally.power_cuts
        assert report.tally.operator_elections == 0, "a synced replica never has to be given up"
    assert power_cuts > 30
