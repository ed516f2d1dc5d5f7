"""A gate that lets nothing through: neither a new failure, nor an entry that nothing needs any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suites.kafka_python import results_of
from tests.suites.verdict import Expected, judge, read_expected

KNOWN = [
    Expected("theirs", "a::one", "why"),
    Expected("theirs", "b::*", "why"),
    Expected("another", "c::x", "why"),
]


def test_what_is_expected_holds() -> None:
    results = {"a::one": "failed", "a::two": "passed", "b::x": "failed", "b::y": "passed", "d::z": "skipped"}
    verdict = judge("theirs", results, KNOWN)  # type: ignore[arg-type]
    assert verdict.holds
    assert verdict.counts() == {
        "passed": 2,
        "expected failures": 2,
        "unexpected failures": 0,
        "unexpected passes": 0,
        "entries that match no test": 0,
        "skipped by the suite": 1,
    }


def test_a_new_failure_does_not_hold() -> None:
    verdict = judge(
        "theirs", {"a::one": "failed", "b::x": "failed", "a::two": "failed", "e": "passed"}, KNOWN
    )
    assert (verdict.holds, verdict.unexpected_failures) == (False, ["a::two"])


def test_an_entry_that_passes_does_not_hold() -> None:
    verdict = judge("theirs", {"a::one": "passed", "b::x": "passed", "b::y": "failed"}, KNOWN)
    assert (verdict.holds, verdict.unexpected_passes) == (False, ["a::one"])


def test_an_entry_that_varies_may_pass_and_fail() -> None:
    racing = [Expected("theirs", "a", "it asks once", varies=True)]
    assert judge("theirs", {"a": "passed", "b": "passed"}, racing).holds
    assert judge("theirs", {"a": "failed", "b": "passed"}, racing).expected == ["a"]
    assert not judge("theirs", {"b": "passed"}, racing).holds


def test_an_entry_without_a_test_does_not_hold() -> None:
    verdict = judge("theirs", {"a::one": "failed", "a::two": "passed"}, KNOWN)
    assert (verdict.holds, verdict.never_run) == (False, ["b::*"])


def test_nothing_run_does_not_hold() -> None:
    assert not judge("elsewhere", {}, KNOWN).holds


def test_every_entry_of_the_list_has_a_reason() -> None:
    entries = read_expected(Path(__file__).with_name("expected.toml").read_text())
    assert len({(each.suite, each.test) for each in entries}) == len(entries)
    with pytest.raises(ValueError, match="no reason"):
        read_expected('[[failure]]\nsuite = "s"\ntest = "t"\nreason = " "\n')


def test_a_report_is_read() -> None:
    report = """<testsuites><testsuite>
        <testcase classname="test.integration.test_a" name="one"/>
        <testcase classname="test.integration.test_a" name="two"><failure/></testcase>
        <testcase classname="test.integration.test_a" name="three"><skipped/></testcase>
        <testcase classname="test.integration.test_a" name="four"/>
        <testcase classname="test.integration.test_a" name="four"><error/></testcase>
    </testsuite></testsuites>"""
    assert results_of(report) == {
        "test_a::one": "passed",
        "test_a::two": "failed",
        "test_a::three": "skipped",
        "test_a::four": "failed",
    }
