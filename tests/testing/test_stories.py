"""Stories show the offsets, high watermarks and epochs of the articles, with the rule off and on.

A row of a table is the stored leader, epoch and ISR, then for each replica its LEO, HW and epoch cache
(`-`: down, or no entry). In the articles records are numbered from 1, here offsets from 0: their epoch entry
(2, 5) is `2@4` here.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from logstore.cli.main import run
from logstore.replication import following, reading
from logstore.replication.follower import Followers
from logstore.testing.stories import drawing
from logstore.testing.stories.board import Board
from logstore.testing.stories.catalogue import STORIES
from logstore.testing.stories.drawing import Box, Caption, Picture, Row
from logstore.testing.stories.scene import Outcome
from logstore.testing.stories.telling import Told, changes, drawn, facts, paragraphs, play

TABLES = {
    # High watermark truncation loses a record in step 3, and for ever in step 6.
    ("lost-record", "off"): """
        A e0 AB: 1/0 0@0; 1/0 0@0
        A e0 AB: 1/1 0@0; 1/0 0@0
        A e0 AB: 1/1 0@0; 0/0 -
        A e0 AB: -; 0/0 -
        B e1 B: -; 0/0 1@0
        B e1 B: 0/0 -; 0/0 1@0
    """,
    ("lost-record", "on"): """
        A e0 AB: 1/0 0@0; 1/0 0@0
        A e0 AB: 1/1 0@0; 1/0 0@0
        A e0 AB: 1/1 0@0; 1/0 0@0
        A e0 AB: -; 1/0 0@0
        B e1 B: -; 1/1 0@0 1@1
        B e1 B: 1/1 0@0; 1/1 0@0 1@1
    """,
    # KIP-101's second scenario: offset 1 is m2 on A and m2' on B.
    ("diverging-replicas", "off"): """
        A e0 AB: 1/1 0@0; 1/1 0@0
        A e0 AB: 2/2 0@0; 2/1 0@0
        A e0 AB: -; -
        B e1 B: -; 1/1 0@0 1@1
        B e1 B: -; 2/2 0@0 1@1
        B e1 B: 2/2 0@0; 2/2 0@0 1@1
        B e1 B: 3/3 0@0 1@2; 3/3 0@0 1@1
    """,
    ("diverging-replicas", "on"): """
        A e0 AB: 1/1 0@0; 1/1 0@0
        A e0 AB: 2/2 0@0; 2/1 0@0
        A e0 AB: -; -
        B e1 B: -; 1/1 0@0 1@1
        B e1 B: -; 2/2 0@0 1@1
        B e1 B: 2/2 0@0 1@1; 2/2 0@0 1@1
        B e1 B: 3/3 0@0 1@1; 3/3 0@0 1@1
    """,
    # The article's example: A asks with epoch 1, B answers the start of epoch 2, A truncates there.
    ("leader-epochs", "off"): """
        A e1 AB: 6/6 1@0; 4/0 1@0
        B e2 B: -; 7/7 1@0 2@4
        B e2 B: 6/6 1@0; 7/7 1@0 2@4
        B e2 B: 7/7 1@0 2@6; 7/7 1@0 2@4
        B e2 B: 7/7 1@0 2@6; 7/7 1@0 2@4
    """,
    ("leader-epochs", "on"): """
        A e1 AB: 6/6 1@0; 4/0 1@0
        B e2 B: -; 7/7 1@0 2@4
        B e2 B: 6/6 1@0; 7/7 1@0 2@4
        B e2 B: 4/4 1@0; 7/7 1@0 2@4
        B e2 B: 7/7 1@0 2@4; 7/7 1@0 2@4
    """,
    # KIP-279: A's answer is about epoch 1, which ended at 2 on B.
    ("fast-leader-change", "off"): """
        A e1 AB: 4/2 1@0; 2/2 1@0
        B e2 AB: 4/2 1@0; 3/2 1@0 2@2
        A e3 AB: 5/2 1@0 3@4; 3/2 1@0 2@2
        A e3 AB: 5/2 1@0 3@4; 3/2 1@0 2@2
        A e3 AB: 5/3 1@0 3@4; 3/2 1@0 2@2
    """,
    ("fast-leader-change", "on"): """
        A e1 AB: 4/2 1@0; 2/2 1@0
        B e2 AB: 4/2 1@0; 3/2 1@0 2@2
        A e3 AB: 5/2 1@0 3@4; 3/2 1@0 2@2
        A e3 AB: 5/2 1@0 3@4; 2/2 1@0
        A e3 AB: 5/5 1@0 3@4; 5/5 1@0 3@4
    """,
    # No member of the ISR lives: leader none until one is back, or any live replica.
    ("leader-and-isr-die", "off"): """
        A e0 ABC: 1/1 0@0; 1/1 0@0; 1/1 0@0
        A e2 A: 2/2 0@0 2@1; -; -
        - e3 A: -; -; -
        C e4 C: -; -; 1/1 0@0 4@1
        C e4 AC: 1/1 0@0; -; 1/1 0@0 4@1
    """,
    ("leader-and-isr-die", "on"): """
        A e0 ABC: 1/1 0@0; 1/1 0@0; 1/1 0@0
        A e2 A: 2/2 0@0 2@1; -; -
        - e3 A: -; -; -
        - e4 A: -; -; 1/0 0@0
        A e5 AC: 2/2 0@0 2@1 5@2; -; 2/2 0@0 2@1
    """,
    # replica.lag.time.max.ms = 10000: out at the first look after more than that, back at the leader's HW.
    ("slow-by-time", "off"): """
        A e0 ABC: 1/1 0@0; 1/1 0@0; 1/1 0@0
        A e0 ABC: 2/1 0@0; 2/1 0@0; 1/1 0@0
        A e0 ABC: 2/1 0@0; 2/1 0@0; 1/1 0@0
        A e0 ABC: 2/1 0@0; 2/1 0@0; 1/1 0@0
    """,
    ("slow-by-time", "on"): """
        A e0 ABC: 1/1 0@0; 1/1 0@0; 1/1 0@0
        A e0 ABC: 2/1 0@0; 2/1 0@0; 1/1 0@0
        A e0 ABC: 2/1 0@0; 2/1 0@0; 1/1 0@0
        A e0 AB: 2/2 0@0; 2/2 0@0; 1/1 0@0
        A e0 ABC: 2/2 0@0; 2/2 0@0; 2/2 0@0
    """,
    # replica.lag.max.messages = 4 here, 4000 in the article: 4 behind stays, 5 behind goes.
    ("slow-by-count", "off"): """
        A e0 ABC: 1/1 0@0; 1/1 0@0; 1/1 0@0
        A e0 ABC: 5/1 0@0; 5/1 0@0; 1/1 0@0
        A e0 ABC: 6/1 0@0; 6/1 0@0; 1/1 0@0
        A e0 ABC: 6/1 0@0; 6/1 0@0; 1/1 0@0
    """,
    ("slow-by-count", "on"): """
        A e0 ABC: 1/1 0@0; 1/1 0@0; 1/1 0@0
        A e0 ABC: 5/1 0@0; 5/1 0@0; 1/1 0@0
        A e0 AB: 6/1 0@0; 6/1 0@0; 1/1 0@0
        A e0 AB: 6/6 0@0; 6/6 0@0; 1/1 0@0
        A e0 ABC: 6/6 0@0; 6/6 0@0; 6/6 0@0
    """,
    # N = 4, min.insync.replicas = N/2 + 1: m4 survives or its producer knows; acks=1: it is lost with A.
    ("cp-or-ap", "off"): """
        A e0 ABCD: 3/3 0@0; 3/3 0@0; 3/3 0@0; 3/3 0@0
        A e0 ABCD: 4/3 0@0; 3/3 0@0; 3/3 0@0; 3/3 0@0
        B e1 BCD: -; 3/3 0@0 1@3; 3/3 0@0; 3/3 0@0
        B e1 BCD: -; 3/3 0@0 1@3; 3/3 0@0; 3/3 0@0
        B e3 B: -; 4/4 0@0 3@3; -; -
    """,
    ("cp-or-ap", "on"): """
        A e0 ABCD: 3/3 0@0; 3/3 0@0; 3/3 0@0; 3/3 0@0
        A e0 ABCD: 4/3 0@0; 3/3 0@0; 3/3 0@0; 3/3 0@0
        B e1 BCD: -; 3/3 0@0 1@3; 3/3 0@0; 3/3 0@0
        B e1 BCD: -; 4/4 0@0 1@3; 4/4 0@0 1@3; 4/4 0@0 1@3
        B e3 B: -; 4/4 0@0 1@3 3@4; -; -
    """,
    # A is back: it does not lead before it is in the ISR and preferred leaders are elected.
    ("stale-log", "off"): """
        A e0 ABC: 2/1 0@0; 1/1 0@0; 1/1 0@0
        B e1 BC: -; 3/3 0@0 1@1; 3/3 0@0 1@1
        B e1 BC: 2/0 0@0; 3/3 0@0 1@1; 3/3 0@0 1@1
        A e2 ABC: 2/0 0@0 2@2; 3/3 0@0 1@1; 3/3 0@0 1@1
        A e2 ABC: 2/2 0@0 2@2; 2/1 0@0; 2/1 0@0
        A e2 ABC: 2/2 0@0 2@2; 2/2 0@0; 2/2 0@0
    """,
    ("stale-log", "on"): """
        A e0 ABC: 2/1 0@0; 1/1 0@0; 1/1 0@0
        B e1 BC: -; 3/3 0@0 1@1; 3/3 0@0 1@1
        B e1 BC: 2/0 0@0; 3/3 0@0 1@1; 3/3 0@0 1@1
        B e1 BC: 2/0 0@0; 3/3 0@0 1@1; 3/3 0@0 1@1
        B e1 ABC: 3/3 0@0 1@1; 3/3 0@0 1@1; 3/3 0@0 1@1
        A e2 ABC: 3/3 0@0 1@1 2@3; 3/3 0@0 1@1; 3/3 0@0 1@1
    """,
    # The next controller finishes the election; STALE_CONTROLLER_EPOCH for what the former one still sends.
    ("controller-failover", "off"): """
        A e0 ABC: 1/1 0@0; 1/1 0@0; 1/1 0@0
        B e1 BC: -; 2/1 0@0 1@1; 1/1 0@0
        B e1 BC: -; 2/2 0@0 1@1; 2/2 0@0 1@1
        B e1 BC: -; 2/2 0@0 1@1; 2/2 0@0 1@1 2@2
        B e1 BC: -; 3/2 0@0 1@1; 3/2 0@0 1@1 2@2
    """,
    ("controller-failover", "on"): """
        A e0 ABC: 1/1 0@0; 1/1 0@0; 1/1 0@0
        B e1 BC: -; 2/1 0@0 1@1; 1/1 0@0
        B e1 BC: -; 2/2 0@0 1@1; 2/2 0@0 1@1
        B e1 BC: -; 2/2 0@0 1@1; 2/2 0@0 1@1
        B e1 BC: -; 3/3 0@0 1@1; 3/3 0@0 1@1
    """,
    # Eight brokers: the leaders of P0 to P7. The article has 6 for P2 and 7 for P3 after the stop. No order
    # of replicas gives that; here it is the first in the list that lives and is in sync.
    ("eight-brokers", "off"): """
        1 2 3 4 5 6 7 8; down -
        3 5 3 6 5 6 7 8; down 1 2 4
        3 5 3 6 5 6 7 8; down 2 4
        3 5 3 6 5 6 7 8; down -
        4 5 6 7 5 6 7 7; down -
    """,
    ("eight-brokers", "on"): """
        1 2 3 4 5 6 7 8; down -
        3 5 3 6 5 6 7 8; down 1 2 4
        3 5 3 6 5 6 7 8; down 2 4
        1 5 3 6 5 6 7 8; down 2 4
        1 5 3 6 5 6 7 8; down -
        1 2 3 4 5 6 7 8; down -
        4 5 6 4 5 6 7 7; down -
    """,
    # OAR {A, B}, RAR {C, D}: all are replicas in a new epoch; D is never in sync, so it waits, and a
    # cancellation restores OAR.
    ("failed-target", "off"): """
        A e0 AB: 2/2 0@0; 2/2 0@0; 0/0 -; -
        A e1 AB: 2/2 0@0 1@2; 2/2 0@0; 0/0 -; -
        C e2 C: 0/0 -; 0/0 -; 0/0 2@0; -
        C e2 C: 0/0 -; 0/0 -; 1/1 2@0; -
    """,
    ("failed-target", "on"): """
        A e0 AB: 2/2 0@0; 2/2 0@0; 0/0 -; -
        A e1 AB: 2/2 0@0 1@2; 2/2 0@0; 0/0 -; -
        A e1 ABC: 2/2 0@0 1@2; 2/2 0@0; 2/2 0@0; -
        A e1 ABC: 3/3 0@0 1@2; 3/3 0@0 1@2; 3/3 0@0 1@2; -
        A e2 AB: 3/3 0@0 1@2 2@3; 3/3 0@0 1@2; 0/0 -; -
    """,
    # The new topic begins with epoch 0 again: C cannot tell its old log from the new one.
    ("deletion-with-a-dead-broker", "off"): """
        A e0 ABC: 2/2 0@0; 2/2 0@0; 2/2 0@0
        - e0 ABC: 0/0 -; 0/0 -; -
        A e0 AB: 2/2 0@0; 2/2 0@0; -
        A e0 ABC: 2/2 0@0; 2/2 0@0; 2/2 0@0
    """,
    ("deletion-with-a-dead-broker", "on"): """
        A e0 ABC: 2/2 0@0; 2/2 0@0; 2/2 0@0
        - e0 ABC: 0/0 -; 0/0 -; -
        - e0 ABC: 0/0 -; 0/0 -; 0/0 -
        A e0 ABC: 2/2 0@0; 2/2 0@0; 2/2 0@0
    """,
}
OUTCOMES = {
    ("controller-failover", "off"): Outcome(lost_acks_1=("m3'",), diverging_offsets=(2,)),
    ("controller-failover", "on"): Outcome(refused=("m3'",)),
    ("lost-record", "off"): Outcome(lost_acks_all=("m1",)),
    ("lost-record", "on"): Outcome(),
    ("diverging-replicas", "off"): Outcome(lost_acks_1=("m2",), diverging_offsets=(1,)),
    ("diverging-replicas", "on"): Outcome(lost_acks_1=("m2",)),
    ("leader-epochs", "off"): Outcome(lost_acks_1=("m5", "m6"), diverging_offsets=(4, 5)),
    ("leader-epochs", "on"): Outcome(lost_acks_1=("m5", "m6")),
    ("fast-leader-change", "off"): Outcome(lost_acks_1=("m3'",), diverging_offsets=(2,)),
    ("fast-leader-change", "on"): Outcome(lost_acks_1=("m3'",)),
    ("leader-and-isr-die", "off"): Outcome(lost_acks_all=("m2",)),
    ("leader-and-isr-die", "on"): Outcome(),
    ("slow-by-time", "off"): Outcome(unanswered=("m2",)),
    ("slow-by-time", "on"): Outcome(),
    ("slow-by-count", "off"): Outcome(unanswered=("m2", "m3", "m4", "m5", "m6")),
    ("slow-by-count", "on"): Outcome(),
    ("cp-or-ap", "off"): Outcome(lost_acks_1=("m4",)),
    ("cp-or-ap", "on"): Outcome(refused=("m5",)),
    ("stale-log", "off"): Outcome(lost_acks_all=("m2", "m3"), unanswered=("x",)),
    ("stale-log", "on"): Outcome(unanswered=("x",)),
    ("eight-brokers", "off"): Outcome(idle=("1", "2", "4")),
    ("eight-brokers", "on"): Outcome(),
    ("failed-target", "off"): Outcome(lost_acks_all=("m1", "m2")),
    ("failed-target", "on"): Outcome(),
    ("deletion-with-a-dead-broker", "off"): Outcome(diverging_offsets=(0, 1)),
    ("deletion-with-a-dead-broker", "on"): Outcome(),
}


@cache
def told(name: str, rule: str) -> Told:
    return play(STORIES[name], is_on=rule == "on")


def row_text(row: Row) -> str:
    if row.role == "down":
        return "-"
    epochs = " ".join(f"{epoch}@{start}" for epoch, start in row.epochs)
    return f"{row.end}/{row.high_watermark} {epochs or '-'}"


def as_table(seen: Told) -> list[str]:
    return [picture_text(picture) for _, picture in seen.steps]


def picture_text(picture: Picture | Board) -> str:
    if isinstance(picture, Board):
        leaders, down = picture.leaders, [seat.broker for seat in picture.seats if not seat.is_up]
        led = " ".join(leaders.get(partition, "-") for partition, _ in picture.preferred)
        return f"{led}; down {' '.join(down) or '-'}"
    stored = f"{picture.leader or '-'} e{picture.leader_epoch} {''.join(picture.isr)}"
    return f"{stored}: " + "; ".join(map(row_text, picture.rows))


@pytest.mark.parametrize(("name", "rule"), TABLES)
def test_a_story_shows_the_articles_offsets_step_by_step(name: str, rule: str) -> None:
    wanted = [" ".join(line.split()) for line in TABLES[name, rule].strip().splitlines()]
    assert as_table(told(name, rule)) == wanted


@pytest.mark.parametrize(("name", "rule"), OUTCOMES)
def test_what_comes_of_a_story(name: str, rule: str) -> None:
    assert told(name, rule).outcome == OUTCOMES[name, rule]


@pytest.mark.parametrize("name", STORIES)
def test_the_rule_prevents_loss_divergence_or_waiting(name: str) -> None:
    """What was acknowledged under the rule is there; without it, something went wrong."""
    on, off = told(name, "on").outcome, told(name, "off").outcome
    assert on.is_led
    assert (on.lost_acks_all, on.diverging_offsets) == ((), ())
    wrong_off, wrong_on = (
        (one.lost_acks_all, one.lost_acks_1, one.diverging_offsets, one.unanswered, one.idle)
        for one in (off, on)
    )
    assert wrong_off != wrong_on
    assert any(wrong_off)


def test_every_story_has_its_table() -> None:
    assert set(TABLES) == set(OUTCOMES) == {(name, rule) for name in STORIES for rule in ("off", "on")}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_leaves_the_rule_as_it_was(name: str) -> None:
    before = vars(Followers)["add"], dict(vars(reading)), dict(vars(following))
    first = told(name, "on")
    play(STORIES[name], is_on=False)
    assert (vars(Followers)["add"], vars(reading), vars(following)) == before
    assert play(STORIES[name]) == first


def test_a_step_says_what_it_did_to_each_log() -> None:
    steps = told("leader-epochs", "on").steps
    assert changes(steps[2].picture, steps[3].picture) == ["A truncates to 4: m5, m6 goes", "A's HW 6 to 4"]
    assert changes(steps[3].picture, steps[4].picture) == ["A appends m5', m6', m7'", "A's HW 4 to 7"]


# --- the drawing ------------------------------------------------------------------------------


def picture() -> Picture:
    one = Row("A", "leads", 1, True, 3, (Box("a", 0), Box("<b>", 1)), 4, ((0, 0), (1, 4)))
    other = Row("B", "follows", 1, False, 3, (Box("a", 0), Box("c", 0)), 3, ((0, 0),))
    return Picture("A", 1, ("A",), (one, other, Row("C", "down")))


def test_a_picture_as_text() -> None:
    assert drawing.lines(picture()) == [
        "store: leader A, epoch 1, ISR {A}",
        "A  leads e1    a/0 | <b>/1  LEO 5  HW 4  epochs 0@0 1@4",
        "B  follows e1  | a/0 c/0    LEO 5  HW 3  epochs 0@0",
        "C  down",
    ]


def test_a_picture_as_svg_marks_what_is_uncommitted_and_what_differs() -> None:
    svg = drawing.draw(picture(), Caption(2, "B & C"))
    assert svg == drawing.draw(picture(), Caption(2, "B & C"))
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    boxes = [box.get("class") for box in root.iter(f"{space}rect")]
    assert boxes == ["paper", "box e0", "box e1 open bad", "box e0 open", "box e0 open bad", "down"]
    assert len(list(root.iter(f"{space}line"))) == 2, "a high watermark for each replica that runs"
    texts = [text.text for text in root.iter(f"{space}text")]
    assert {"2. B & C", "<b>", "HW 4", "LEO 5", "stored: leader A, epoch 1, ISR {A}"} <= set(texts)
    assert "@media (prefers-color-scheme:dark)" in svg


def test_what_is_drawn_stays_inside_the_drawing() -> None:
    for name in STORIES:
        root = ElementTree.fromstring(drawn([told(name, "off"), told(name, "on")]))
        width, height = float(root.get("width", "0")), float(root.get("height", "0"))
        space = "{http://www.w3.org/2000/svg}"
        for group in root.iter(f"{space}g"):
            dx, dy = map(float, re.findall(r"[\d.]+", group.get("transform", "")))
            for box in group.iter(f"{space}rect"):
                assert dx + float(box.get("x", "0")) + float(box.get("width", "0")) <= width
                assert dy + float(box.get("y", "0")) + float(box.get("height", "0")) <= height


# --- the command ------------------------------------------------------------------------------


def test_the_command_lists_the_stories(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["story", "list"]) == 0
    capsys.readouterr()
    assert run(["story"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(STORIES)
    assert run(["story", "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["story"] == "lost-record"
    assert first["off"] == "a follower truncates to its own high watermark, as before KIP-101."


def test_the_command_plays_off_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["story", "lost-record"]) == 0
    shown = capsys.readouterr().out
    both = [*paragraphs(told("lost-record", "off")), *paragraphs(told("lost-record", "on"))]
    assert shown == "".join(text + "\n" for text in both)
    assert "Acknowledged with acks=all and lost: m1." in shown


def test_the_command_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["story", "lost-record", "--rule", "off", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == json.loads(json.dumps(list(facts(told("lost-record", "off")))))
    assert lines[2]["rows"][1] == {
        "name": "B", "role": "follows", "epoch": 0, "is_in_sync": True,
        "start": 0, "boxes": [], "high_watermark": 0, "epochs": [],
    }  # fmt: skip
    assert lines[-1]["outcome"]["lost_acks_all"] == ["m1"]


def test_the_command_writes_the_drawing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "story.svg"
    assert run(["story", "lost-record", "--rule", "on", "--svg", str(target)]) == 0
    assert target.read_text() == drawn([told("lost-record", "on")])
    capsys.readouterr()


def test_step_waits_after_each_paragraph(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keyboard:
        asked = 0

        def readline(self) -> str:
            Keyboard.asked += 1
            return "\n"

    monkeypatch.setattr("sys.stdin", Keyboard())
    assert run(["story", "lost-record", "--rule", "on", "--step"]) == 0
    assert Keyboard.asked == len(list(paragraphs(told("lost-record", "on"))))
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "no story 'nonsense'; choose from lost-record"),
        (["lost-record", "--rule", "maybe"], "'maybe'"),
        (["--svg", "x.svg"], "need the NAME of a story"),
        (["lost-record", "--step", "--json"], "cannot be combined"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["story", *arguments]) == 2
    assert said in capsys.readouterr().err
