"""`logstore demo`: each acknowledged record is there once, whatever dies, and the account would notice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore.cli.drill
from logstore.cli.demo import _table, input_lines
from logstore.cli.drill import Account, Drill, Plan, Stuck, settle
from logstore.disk.files import OsDisk
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from tests.cli.conftest import SEGMENT_0, Outcome, write_files

Command = Callable[..., Outcome]

LINES = [b"first", b"", b"\xff\xfe third", b"first"]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_nothing_is_lost(command: Command, tmp_path: Path, replicas: int, seed: int) -> None:
    """The promise, on real files, with the power cut in the middle; a dump of each node agrees."""
    (tmp_path / "input").write_bytes(b"\n".join(LINES) + b"\n")
    outcome = command(
        "demo", tmp_path / "input", "--records", 2000, "--kill", 4, "--replicas", replicas,
        "--seed", seed, "--dir", tmp_path / "out", "--json",
    )  # fmt: skip
    verdict = json.loads(outcome.out.splitlines()[-1])
    assert outcome.code == 0
    assert verdict.pop("seconds") >= 0
    for name in ("truncations", "records_truncated", "unsynced_bytes_lost", "resends"):
        assert verdict.pop(name) >= 0
    assert verdict == {
        "acked": 2000, "read_back": 2000, "lost": 0, "duplicated": 0, "foreign": 0, "identical": True,
        "divergent_offset": -1, "kills": 4, "elections": 4, "replicas": replicas, "seed": seed,
    }  # fmt: skip
    for node_id in range(replicas):
        dumped = command("dump", tmp_path / "out" / f"node-{node_id}", "--verify")
        assert (dumped.code, dumped.err) == (0, "")


def test_the_old_leader_truncates_and_loses_bytes(command: Command) -> None:
    """The drill is worth nothing if the power cuts take nothing, or nobody is ever ahead."""
    verdict = json.loads(command("demo", "--records", 5000, "--kill", 8, "--json").out)
    assert verdict["truncations"] > 0
    assert verdict["records_truncated"] > 0
    assert verdict["unsynced_bytes_lost"] > 0
    assert verdict["resends"] > 0


def test_one_seed_is_one_run(command: Command, tmp_path: Path) -> None:
    """A drill that went wrong has to be repeatable."""
    (tmp_path / "input").write_bytes(b"line\n" * 500)

    def events(number: int) -> tuple[str, list[object]]:
        outcome = command(
            "demo", tmp_path / "input", "--records", 1000, "--seed", 5, "--json",
            "--dir", tmp_path / str(number),
        )  # fmt: skip
        verdict = json.loads(outcome.out)
        return outcome.err, [verdict[name] for name in verdict if name != "seconds"]

    assert events(1) == events(2)


def test_words_for_people(command: Command, tmp_path: Path) -> None:
    """Without a terminal: a line for every kill on stderr, the verdict on stdout."""
    (tmp_path / "input").write_bytes(b"a\nb\n")
    outcome = command("demo", tmp_path / "input", "--records", 200, "--kill", 2)
    assert outcome.code == 0
    assert outcome.err.count("lost its power") == 2
    assert outcome.out.splitlines()[0].split() == ["acked", "200"]
    assert outcome.out.splitlines()[-1].startswith("each acknowledged record")


def test_the_table_on_a_terminal(tmp_path: Path) -> None:
    """Who leads in which epoch, who is in sync, how far each one is; a dead node is seen as dead."""
    tables = []
    plan = Plan(
        lines=LINES, record_count=500, replicas=3, kills=1, seed=0, directory=str(tmp_path), now_ms=10**12,
        watch=lambda drill: tables.append(_table(drill, 500)),
    )  # fmt: skip
    Drill(plan, OsDisk()).run()
    columns = [[[str(cell) for cell in column.cells] for column in table.columns] for table in tables]
    assert all(len(roles) == 3 and roles.count("leader") <= 1 for _, roles, *_ in columns)
    assert any("down" in roles for _, roles, *_ in columns)
    _, roles, epochs, in_sync, _, log_ends = columns[-1]
    assert sorted(roles) == ["follower", "follower", "leader"]
    assert (in_sync, log_ends) == (["yes"] * 3, ["500"] * 3)
    assert len(set(epochs)) == 1


def test_a_directory_that_is_not_empty_is_refused(command: Command, tmp_path: Path) -> None:
    """Somebody's data may be there."""
    (tmp_path / "precious").write_bytes(b"")
    outcome = command("demo", "--records", 10, "--dir", tmp_path)
    assert outcome.code == 2
    assert "is not empty" in outcome.err


def test_a_line_that_no_log_takes(command: Command, tmp_path: Path) -> None:
    """The refusal of the log reaches the user in one line."""
    (tmp_path / "input").write_bytes(b"x" * 2_000_000)
    outcome = command("demo", tmp_path / "input", "--records", 1)
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("logstore: the batch of records 0")


def test_a_cluster_that_makes_no_progress_is_given_up(tmp_path: Path) -> None:
    """With every node dead nothing can be acknowledged: an error, not an endless loop."""

    def kill_all(drill: Drill) -> None:
        for node_id in list(drill.cluster.nodes):
            drill.cluster.kill_node(node_id)

    plan = Plan(
        lines=LINES, record_count=1000, replicas=3, kills=0, seed=0, directory=str(tmp_path), now_ms=10**12,
        watch=kill_all,
    )  # fmt: skip
    with pytest.raises(Stuck, match="no progress"):
        Drill(plan, OsDisk()).run()


# --- input ------------------------------------------------------------------------------------


def test_lines_of_files(tmp_path: Path) -> None:
    """Line ends go, blank lines stay, a last line without an end counts, an empty file has none."""
    paths = [tmp_path / name for name in "abc"]
    for path, content in zip(paths, (b"one\n\ntwo\r\n", b"", b"three\nfour"), strict=True):
        path.write_bytes(content)
    assert input_lines(paths, 0) == [b"one", b"", b"two\r", b"three", b"four"]
    assert input_lines(paths, 2) == [b"one", b""]


def test_the_library_is_real_text() -> None:
    """Without files: Python's own sources, which are on every machine."""
    lines = input_lines([], 1000)
    assert len(lines) == 1000
    assert any(line.startswith(b"import ") for line in lines)


# --- the account ------------------------------------------------------------------------------


def log_of(numbers: list[int], *, values: dict[int, bytes] | None = None, base_offset: int = 0) -> bytes:
    """A batch of the records with these numbers, as the producer makes them."""
    values = values or {}
    return encode_batch(
        [
            Record(base_offset + i, 5, b"%d" % number, values.get(number, LINES[number % len(LINES)]))
            for i, number in enumerate(numbers)
        ],
        base_offset=base_offset,
    )


@pytest.mark.parametrize(
    ("leader", "follower", "account"),
    [
        (log_of([0, 1, 2, 3, 4]), log_of([0, 1, 2, 3, 4]), Account(5, 0, 0, 0, -1)),
        (log_of([0, 1, 3, 4]), log_of([0, 1, 3, 4]), Account(4, 1, 0, 0, -1)),
        (log_of([0, 1, 2, 2, 3, 4]), log_of([0, 1, 2, 2, 3, 4]), Account(6, 0, 1, 0, -1)),
        (log_of([0, 1, 2, 3, 4, 7]), log_of([0, 1, 2, 3, 4, 7]), Account(6, 0, 0, 1, -1)),
        (log_of([0, 1, 2, 3, 4]), log_of([0, 1, 2, 3]), Account(5, 0, 0, 0, 0)),
        (
            log_of([0, 1, 2]) + log_of([3, 4], base_offset=3),
            log_of([0, 1, 2]) + log_of([4, 3], base_offset=3),
            Account(5, 0, 0, 0, 3),
        ),
        (
            log_of([0, 1, 2]) + log_of([3, 4], base_offset=3),
            log_of([0, 1, 2]),
            Account(5, 0, 0, 0, 3),
        ),
        (log_of([0, 1, 2, 3, 4], values={2: b"other"}),) * 2 + (Account(5, 1, 0, 1, -1),),
        (b"", b"", Account(0, 5, 0, 0, -1)),
    ],
    ids=[
        "settled", "lost", "duplicated", "never sent", "other bytes", "another order", "a shorter replica",
        "changed", "empty",
    ],
)  # fmt: skip
def test_the_account_notices(tmp_path: Path, leader: bytes, follower: bytes, account: Account) -> None:
    """A checker that never fails is not a checker."""
    directories = []
    for number, content in enumerate((leader, follower)):
        directory = write_files(tmp_path / str(number) / "demo-0", {f"{SEGMENT_0}.log": content})
        directories.append(str(directory))
    assert settle(OsDisk(), directories, 0, lines=LINES, acked=5) == account
    assert account.is_settled == (account == Account(5, 0, 0, 0, -1))


def test_a_loss_is_exit_1(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What scripts see if the promise is ever broken."""
    monkeypatch.setattr(logstore.cli.drill, "settle", lambda *_, **__: Account(9, 1, 0, 0, -1))
    outcome = command("demo", "--records", 10, "--kill", 0, "--json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["lost"] == 1
