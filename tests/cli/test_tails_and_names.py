"""Zeros at the end of a log have one judgement; names and ranges that mean nothing are refused."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore import Log
from tests.cli.conftest import Outcome
from tests.cli.conftest import snapshot as content_of

Command = Callable[..., Outcome]
decoded: list[bytes] = []


def noted(data: bytes) -> str:
    """A user's decoder that notes its calls."""
    decoded.append(data)
    return data.decode()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with Log.open(tmp_path / "orders-0") as log:
        log.append([b"%d" % number for number in range(5)])
    return tmp_path / "orders-0"


def test_zeros_at_the_end_are_no_damage_and_have_one_name(command: Command, directory: Path) -> None:
    """A crash leaves them, and a preallocated file has them: every verb says so, with exit code 0."""
    log = directory / f"{0:020d}.log"
    size = log.stat().st_size
    log.write_bytes(log.read_bytes() + bytes(100))
    before = content_of(directory)
    for verb in (["cat"], ["verify"], ["dump", "--verify"]):
        ended = command(*verb, directory)
        assert ended.code == 0, ended
        said = f"{log.name} at byte {size}: 100 zero bytes to the end of the file: being written now, or torn"
        assert said in ended.out + ended.err, ended
    whole = directory.with_name("whole") / "orders-0"
    whole.mkdir(parents=True)
    (whole / log.name).write_bytes(log.read_bytes()[:size])
    compared = command("diff", whole, directory)
    assert compared.code == 0, compared
    assert f"{log.name} at byte {size}: 100 bytes: zero bytes to the end of the file" in compared.err
    assert content_of(directory) == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tø p-0", "1 to 249 characters of [a-zA-Z0-9._-]"),
        ("orders-01", "without leading zeros"),
        ("orders", "is not named <topic>-<partition>"),
    ],
)
def test_a_name_that_no_partition_has_is_bad_usage(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    ended = command("append", tmp_path / name)
    assert (ended.code, said in ended.err) == (2, True), ended
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("host", ["", "a b", "a/b", "-"])
def test_a_certificate_for_no_host_is_bad_usage(command: Command, tmp_path: Path, host: str) -> None:
    ended = command("certs", tmp_path / "tls", "--host", host)
    assert (ended.code, "is neither an IP address nor" in ended.err) == (2, True), ended
    assert not (tmp_path / "tls").exists()
    assert command("certs", tmp_path / "tls", "--host", "*.example.org", "--host", "::1").code == 0


@pytest.mark.parametrize(
    "options",
    [("--from-offset", 5, "--to-offset", 2), ("--from-time", "2026-02-01", "--to-time", "2026-01-01")],
)
def test_a_range_that_ends_before_it_begins_is_bad_usage(
    command: Command, directory: Path, options: tuple[object, ...]
) -> None:
    ended = command("dump", directory, *options)
    assert (ended.code, ended.out, "that selects nothing" in ended.err) == (2, "", True)


def test_only_what_is_selected_is_decoded(command: Command, directory: Path) -> None:
    decoded.clear()
    decoder = ("--value-decoder", "tests.cli.test_tails_and_names:noted")
    shown = command("dump", directory, "--records", "--json", "--from-offset", 1, "--to-offset", 2, *decoder)
    assert [json.loads(line)["value"] for line in shown.out.splitlines()] == ["1", "2"]
    assert decoded == [b"1", b"2"]
