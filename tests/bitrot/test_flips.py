"""One bit flipped in every byte of a log dir with every kind of file: noticed, or nothing changes.

A flip is noticed if `logstore verify` calls it damage, or if opening the dir or reading all of it complains.
Else everything that the logs answer must be what it was, and still so after another stop and start. The full
count is `make bitrot`; `make test` draws some bytes of every kind.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import pytest

from logstore.testing.disks import MemoryDisk
from tests.bitrot.reference import ROOT, Seen, kind_of, reference, seen_on, verdict, verified

KINDS = {
    ".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".seal", ".offset-checkpoint",
    ".leader-epoch-checkpoint", ".partition.metadata", ".meta.properties", ".clean-shutdown", "lost/",
    ".timeindex.deleted",
}  # fmt: skip


@pytest.fixture(scope="module")
def disk() -> MemoryDisk:
    return reference()


@pytest.fixture(scope="module")
def truth(disk: MemoryDisk) -> Seen:
    seen = seen_on(disk.copy())
    assert not seen.complaint
    return seen


def test_reference_directory_is_valid_and_complete(disk: MemoryDisk, truth: Seen) -> None:
    files = disk.files()
    assert verified(disk, f"{ROOT}/orders-0/x") is None
    assert {kind_of(path) for path, content in files.items() if content} == KINDS
    assert sum(map(len, files.values())) >= 250_000
    assert len([path for path in files if path.endswith(".log") and "orders" in path]) >= 4


def flips(disk: MemoryDisk, cases: Iterable[tuple[str, int, int]]) -> Iterator[str]:
    """Flip a bit of each (path, position, bit), yield the path while it is so, flip it back."""
    for path, position, bit in cases:
        file = disk.open(path, write=True)
        byte = file.pread(1, position)
        file.pwrite(bytes([byte[0] ^ (1 << bit)]), position)
        yield path
        file.pwrite(byte, position)
        file.close()


def count(disk: MemoryDisk, truth: Seen, cases: Iterable[tuple[str, int, int]]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    believed = []
    cases = list(cases)
    for case, path in zip(cases, flips(disk, cases), strict=True):
        outcome = verdict(disk, path, truth)
        counts[kind_of(path)][outcome] += 1
        if outcome == "believed":
            believed.append(case)
    assert not believed, f"{len(believed)} flips were believed (path, byte, bit): {believed[:20]}"
    return counts


def every_byte(disk: MemoryDisk, chance: random.Random) -> list[tuple[str, int, int]]:
    return [
        (path, position, chance.randrange(8))
        for path, content in sorted(disk.files().items())
        for position in range(len(content))
    ]


@pytest.mark.parametrize("seed", [1])
def test_flips_in_a_sample_of_every_kind_of_byte(disk: MemoryDisk, truth: Seen, seed: int) -> None:
    chance = random.Random(seed)
    by_kind: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for case in every_byte(disk, chance):
        by_kind[kind_of(case[0])].append(case)
    cases = [case for kind in sorted(by_kind) for case in chance.sample(by_kind[kind], 25)]
    counts = count(disk, truth, cases)
    assert sum(map(Counter.total, counts.values())) == 25 * len(KINDS)


def test_the_sign_of_an_epoch(disk: MemoryDisk, truth: Seen) -> None:
    """Negative, it passed for unknown: found by `test_flip_in_every_byte`."""
    active = max(path for path in disk.files() if path.endswith(".log") and "/orders-0/0" in path)
    count(disk, truth, [(active, 12, 7)])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_flip_in_every_byte(disk: MemoryDisk, truth: Seen) -> None:
    counts = count(disk, truth, every_byte(disk, random.Random(2)))
    for kind, outcomes in sorted(counts.items()):
        print(f"{kind:28} {dict(outcomes)}")
    assert sum(map(Counter.total, counts.values())) >= 250_000


# --- bytes that are right in themselves, in the wrong place -------------------------------------


def batches_of(content: bytes) -> list[tuple[int, int]]:
    """(start, end) of each batch in a `.log`."""
    found, at = [], 0
    while at < len(content):
        end = at + 12 + int.from_bytes(content[at + 8 : at + 12])
        found.append((at, end))
        at = end
    return found


def misplaced(disk: MemoryDisk, chance: random.Random, number: int) -> dict[str, bytes]:
    """New contents of some files: a batch over another, a block of elsewhere, two files in exchange."""
    files = disk.files()
    live = {path: content for path, content in files.items() if "/lost/" not in path and content}
    logs = sorted(path for path in live if path.endswith(".log"))
    path, other = chance.sample(logs, 2)
    content = bytearray(files[path])
    if number % 3 == 0:
        start, end = chance.choice(batches_of(files[path]))
        others = [
            files[each][a:b]
            for each in (path, other)
            for a, b in batches_of(files[each])
            if files[each][a:b] != files[path][start:end]
        ]
        content[start:end] = chance.choice(others)
        return {path: bytes(content)}
    if number % 3 == 1:
        size = min(512 << chance.randrange(4), len(files[other]), len(content))
        at = chance.randrange(len(content) - size + 1) // 512 * 512
        source = chance.randrange(len(files[other]) - size + 1) // 512 * 512
        content[at : at + size] = files[other][source : source + size]
        return {path: bytes(content)}
    suffix = chance.choice([".log", ".index", ".timeindex", ".seal", ".snapshot", ".txnindex"])
    alike = sorted(path for path in live if path.endswith(suffix))
    one, two = chance.sample(alike, 2)
    return {one: files[two], two: files[one]}


def judge_misplaced(disk: MemoryDisk, truth: Seen, cases: range) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for number in cases:
        changed = misplaced(disk, random.Random(number), number)
        image = disk.copy()
        for path, content in changed.items():
            file = image.open(path, write=True)
            file.truncate(0)
            file.pwrite(content, 0)
            file.close()
        outcome = verdict(image, next(iter(changed)), truth)
        assert outcome != "believed", f"case {number}: {sorted(changed)}"
        outcomes[outcome] += 1
    return outcomes


def test_some_bytes_in_the_wrong_place(disk: MemoryDisk, truth: Seen) -> None:
    judge_misplaced(disk, truth, range(60))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_bytes_in_the_wrong_place(disk: MemoryDisk, truth: Seen) -> None:
    outcomes = judge_misplaced(disk, truth, range(1500))
    print(dict(outcomes))
    assert outcomes.total() >= 1000
