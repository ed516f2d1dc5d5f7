"""The codec against kio, against itself, and against bytes that nobody meant."""

from __future__ import annotations

import pytest

from broker.wire.apis import Api
from broker.wire.codec import decode, encode
from broker.wire.declarations import Struct
from tests.broker.wire.samples import (
    CASES,
    NODES_ONLY,
    Generator,
    case_name,
    kio_bytes,
    kio_decode,
    kio_type,
    to_kio,
)

Case = tuple[Api, int, type[Struct]]
SHARED_WITH_KIO = [case for case in CASES if case[0].key not in NODES_ONLY]
EVERY_SEED = range(40)
ONE_SEED = range(3)


def joined(message: Struct, version: int) -> bytes:
    return b"".join(encode(message, version))


def same_as_kio(case: Case, seed: int) -> None:
    _, version, kind = case
    name = f"{case_name(case)} seed {seed}"
    message = Generator(name, ours=False).message(kind, version)
    entity = to_kio(message, kio_type(kind, version))
    data = joined(message, version)
    assert data == kio_bytes(entity), name
    assert decode(kind, version, memoryview(data)) == (message, len(data)), name
    assert kio_decode(type(entity), data) == (entity, len(data)), name


@pytest.mark.parametrize("case", SHARED_WITH_KIO, ids=case_name)
def test_bytes_are_those_of_kio_in_both_directions(case: Case) -> None:
    """Two implementations that share only the declarations. The seeds are in the failure's text."""
    for seed in ONE_SEED:
        same_as_kio(case, seed)


@pytest.mark.slow
@pytest.mark.parametrize("case", SHARED_WITH_KIO, ids=case_name)
def test_bytes_are_those_of_kio_many_times(case: Case) -> None:
    for seed in EVERY_SEED:
        same_as_kio(case, seed)


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_what_only_our_nodes_say_comes_back_too(case: Case) -> None:
    """Fields in tags of our own, and the four messages that kio does not have."""
    _, version, kind = case
    for seed in ONE_SEED:
        message = Generator(f"ours {case_name(case)} {seed}", ours=True).message(kind, version)
        data = joined(message, version)
        assert decode(kind, version, memoryview(data)) == (message, len(data)), seed
