"""The targets of `make fuzz` for seconds: bytes drawn at random, and messages with a few bytes changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import targets

QUICK = settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def near(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """A seed with up to three places overwritten, cut or doubled."""
    edits = st.lists(
        st.tuples(
            st.integers(0, 400), st.sampled_from(["set", "cut", "insert", "double"]), st.binary(max_size=5)
        ),
        max_size=3,
    )

    def edited(seed: bytes, changes: list[tuple[int, str, bytes]]) -> bytes:
        for place, how, data in changes:
            at = 2 + place % max(len(seed) - 1, 1)
            match how:
                case "set":
                    seed = seed[:at] + data + seed[at + len(data) :]
                case "cut":
                    seed = seed[:at]
                case "insert":
                    seed = seed[:at] + data + seed[at:]
                case _:
                    seed = seed[:at] + seed[at:] * 2
        return seed

    return st.builds(edited, st.sampled_from(seeds), edits)


@QUICK
@given(data=st.binary(max_size=500) | near(list(targets.seeds_of_frames())))
def test_streams_are_cut_into_frames_whatever_pieces_they_come_in(data: bytes) -> None:
    targets.frames(data)


@QUICK
@given(data=st.binary(max_size=60) | near(list(targets.seeds_of_headers())))
def test_headers(data: bytes) -> None:
    targets.headers(data)


@settings(QUICK, max_examples=500)
@given(data=st.binary(max_size=200) | near(list(targets.seeds_of_requests())))
def test_messages_are_refused_or_survive_a_journey(data: bytes) -> None:
    targets.requests(data)


@pytest.fixture(scope="module")
def served() -> Iterator[targets.Served]:
    with pytest.MonkeyPatch.context() as patch:
        targets.with_few_partitions(patch)
        made = targets.Served()
        yield made
        made.close()


@settings(QUICK, max_examples=300)
@given(data=st.binary(max_size=200) | near(list(targets.seeds_of_served())))
def test_a_broker_lives_through_any_request(data: bytes, served: targets.Served) -> None:
    served(data)


def test_every_seed_of_the_campaigns(served: targets.Served) -> None:
    """What the campaigns begin with: one good message of each kind and version."""
    for seed in targets.seeds_of_requests():
        targets.requests(seed)
    for seed in targets.seeds_of_served():
        served(seed)
    for seed in targets.seeds_of_frames():
        targets.frames(seed)
    for seed in targets.seeds_of_headers():
        targets.headers(seed)
