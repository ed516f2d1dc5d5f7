"""Runs written down: replayed to the byte, and made as short as can be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from logstore.testing.__main__ import main
from logstore.testing.runner import replay, run, shortened
from logstore.testing.shrink import minimal
from logstore.testing.swarm import draw
from logstore.testing.transcript import Transcript
from tests.plants import planted

EVENTS = 1500
PLANT = "acknowledged-too-early"


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(4))
def test_a_transcript_is_the_whole_run(seed: int) -> None:
    """Nothing but the decisions is written down: the rest follows from the seed."""
    report = run(seed, EVENTS)
    assert report.decisions
    text = report.transcript(EVENTS).to_json()
    again = replay(Transcript.from_json(text))
    assert (again.trace_hash, again.decisions) == (report.trace_hash, report.decisions)


@pytest.mark.simulation
def test_leaving_decisions_out_leaves_the_others_as_they_were() -> None:
    report = run(2, EVENTS)
    half = report.decisions[::2]
    again = replay(Transcript(seed=2, events=EVENTS, decisions=half))
    assert again.decisions == half[: len(again.decisions)]
    assert again.trace_hash != report.trace_hash


@pytest.mark.simulation
def test_a_failure_is_shrunk_to_what_it_needs() -> None:
    """The same rule breaks still, with far fewer faults and less noise; without one more, it does not."""
    with planted("elected-outside-the-isr"):
        reports = (run(seed, 700) for seed in range(136, 300))
        report = next(each for each in reports if not each.is_good and len(each.decisions) > 16)
        assert report.invariant == "C13"
        short = shortened(report, 700, "elected-outside-the-isr")
        assert replay(short).invariant == report.invariant
        assert len(short.decisions) <= len(report.decisions) // 4
        for left_out in short.decisions:
            rest = tuple(each for each in short.decisions if each is not left_out)
            shorter = Transcript(
                seed=short.seed,
                events=short.events,
                decisions=rest,
                silent=short.silent,
                most_sends=short.most_sends,
                quiet=short.quiet,
            )
            assert replay(shorter).invariant != report.invariant


def test_the_least_part_that_breaks_is_found() -> None:
    tried: list[Sequence[int]] = []

    def breaks(items: Sequence[int]) -> bool:
        tried.append(items)
        return {3, 17} <= set(items)

    assert minimal(range(40), breaks) == [3, 17]
    assert len(tried) < 100
    assert minimal([1, 2, 3], lambda items: True) == []


def test_quiet_switches_noise_off() -> None:
    seed = next(seed for seed in range(50) if draw(seed).features.drops and draw(seed).features.reordering)
    noisy = Transcript(seed=seed, events=1, decisions=())
    quiet = Transcript(seed=seed, events=1, decisions=(), quiet=("drops", "reordering", "delay"))
    assert noisy.swarm == draw(seed)
    assert noisy.swarm.drop_rate > 0 == quiet.swarm.drop_rate
    assert not quiet.swarm.features.reordering
    assert quiet.swarm.delay_ms == 1


@pytest.mark.simulation
def test_the_command_shrinks_and_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shrink", "0", "--plant", PLANT]) == 1
    text = capsys.readouterr().out
    assert json.loads(text)["plant"] == PLANT
    path = tmp_path / "transcript.json"
    path.write_text(text)
    assert main(["--replay", str(path)]) == 1
    assert "VIOLATION C4" in capsys.readouterr().out


@pytest.mark.simulation
def test_a_good_seed_cannot_be_shrunk(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shrink", "1", "--events", "300"]) == 2
    assert "good" in capsys.readouterr().err


@pytest.mark.simulation
def test_a_campaign_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "progress"
    path.write_text(json.dumps({"first": 1, "last": 4, "events": 200, "next": 4, "bad": []}))
    assert main(["--seeds", "1..4", "--events", "200", "--progress", str(path)]) == 0
    assert "1 seeds, " in capsys.readouterr().out
    assert json.loads(path.read_text())["next"] == 5
    with pytest.raises(SystemExit, match="other seeds"):
        main(["--seeds", "1..9", "--events", "200", "--progress", str(path)])
