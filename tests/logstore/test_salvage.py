"""Salvage brings back every sound batch of directories that Kafka wrote, and invents none.

The judge shares no code with it but the checksum: it tries every byte of the damaged files.
"""

from __future__ import annotations

import errno
import os
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest

from logstore.disk.errors import DirectoryLocked
from logstore.disk.memory import MemoryDisk
from logstore.errors import DamagedLog
from logstore.format.batch import encode_batch
from logstore.format.crc import crc32c
from logstore.format.record import Record
from logstore.log.log import Log
from logstore.log.reader import LogReader
from logstore.log.salvage import Salvage, salvage
from logstore.log.sound_batches import PatientFile
from logstore.segment.damage import sweep
from logstore.testing.disks import FaultyDisk
from logstore.testing.disks.faulty import Fault
from tests.golden.kafka_directories import directory

SOURCE, TARGET = "/dead/orders-0", "/saved/orders-0"
PARTITIONS = {
    f"{name}/{path}": {
        file.rpartition("/")[2]: content
        for file, content in directory(name).items()
        if file.startswith(f"{path}/") and file.count("/") == 1
    }
    for name in ("kraft-dir", "kafka-logs")
    for path in sorted({file.partition("/")[0] for file in directory(name)})
    if any(file.startswith(f"{path}/") and file.endswith(".log") for file in directory(name))
}


def saved(files: Mapping[str, bytes]) -> tuple[Salvage, dict[str, bytes], MemoryDisk]:
    """Salvage a partition with these files; return the result, the target's files, and the disk."""
    disk = MemoryDisk({f"{SOURCE}/{name}": content for name, content in files.items()})
    results: list[Salvage] = []
    assert salvage(disk, SOURCE, TARGET, results.append) == []
    (result,) = results
    return result, contents(disk, TARGET), disk


def contents(disk: MemoryDisk, path: str) -> dict[str, bytes]:
    return {
        entry.name: disk.open(f"{path}/{entry.name}").pread(entry.size, 0)
        for entry in disk.scan(path)
        if not entry.is_directory
    }


# --- the judge ------------------------------------------------------------------------------------


class Sound(NamedTuple):
    """A batch with a right checksum; `body` is what the checksum covers."""

    name: str
    position: int
    base: int
    last: int
    epoch: int
    body: bytes


def walk(files: Mapping[str, bytes]) -> Iterator[Sound]:
    """Find every sound batch at any byte of the `.log` files; those inside of another one are left out."""
    for name, data in sorted(files.items()):
        if not name.endswith(".log"):
            continue
        at = 0
        while at + 61 <= len(data):
            base, length, epoch, magic, crc = struct.unpack_from(">qiibI", data, at)
            end = at + 12 + length
            if magic == 2 and at + 61 <= end <= len(data) and crc32c(data[at + 21 : end]) == crc:
                (delta,) = struct.unpack_from(">i", data, at + 23)
                yield Sound(name, at, base, base + delta, epoch, data[at + 17 : end])
                at = end
            else:
                at += 1


def judge(before: Mapping[str, bytes], damaged: Mapping[str, bytes]) -> Counter[str]:
    """Salvage the damaged files and compare with what they were before the damage."""
    originals: dict[bytes, list[Sound]] = {}
    for batch in walk(before):
        originals.setdefault(batch.body, []).append(batch)
    result, files, disk = saved(damaged)
    after = list(walk(files))
    assert sum(len(content) for name, content in files.items() if name.endswith(".log")) == result.bytes
    assert [batch.base for batch in after] == sorted({batch.base for batch in after})
    by_body: dict[bytes, list[Sound]] = {}
    for batch in after:
        by_body.setdefault(batch.body, []).append(batch)
    seen = Counter[str]()
    left_out = {(each.file, each.position) for each in result.left_out}
    walked = list(walk(damaged))
    right = [
        place
        for place, batch in enumerate(walked)
        if any((each.base, each.epoch) == (batch.base, batch.epoch) for each in originals[batch.body])
    ]
    for place, batch in enumerate(walked):
        back = by_body.get(batch.body, [])
        if place in right and any((each.base, each.epoch) == (batch.base, batch.epoch) for each in back):
            seen["back"] += 1
        elif place in right and any(
            (walked[other].base < batch.base) != (other < place) for other in right if other != place
        ):
            # Bytes of one place are in another: they contradict others that are right too.
            assert (batch.name, batch.position) in left_out, batch[:5]
            seen["moved"] += 1
        elif place in right:
            pytest.fail(f"{batch[:5]} is missing")
        elif any(each.base == found.base for each in originals[batch.body] for found in back):
            seen["placed"] += 1
        elif (batch.name, batch.position) in left_out:
            seen["left out"] += 1
        else:
            # No neighbour contradicts the header.
            assert [each for each in back if each.base == batch.base], batch[:5]
            seen["undecided"] += 1
    assert by_body.keys() <= originals.keys(), "a batch was invented"
    held = {offset for batch in after for offset in range(batch.base, batch.last + 1)}
    gaps = [(gap.first_offset, gap.last_offset) for gap in result.gaps]  # a wrong offset may make a huge one
    assert not any(first <= batch.base <= last for batch in after for first, last in gaps)
    for original in (each for batches in originals.values() for each in batches):
        for offset in set(range(original.base, original.last + 1)) - held:
            assert not result.start_offset <= offset < result.end_offset or any(
                first <= offset <= last for first, last in gaps
            )
    opens_as_a_log(disk, after)
    return seen


def opens_as_a_log(disk: MemoryDisk, after: list[Sound]) -> None:
    """What survives a power cut reads without damage, and recovery, which checks all, takes all of it."""
    image = disk.durable_image()
    read = [(each.base_offset, bytes(each.buffer[17:])) for each in LogReader(TARGET, disk=image).batches()]
    assert read == [(batch.base, batch.body) for batch in after]
    with Log.open(TARGET, disk=image) as log:
        assert [batch.base_offset for batch in log.read_batches()] == [batch.base for batch in after]
        assert log.losses() == []


# --- random damage --------------------------------------------------------------------------------


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def flip_in_a_header(data: bytearray, chance: random.Random) -> None:
    """In the 21 bytes that no checksum covers."""
    starts = [batch.position for batch in walk({"0.log": bytes(data)})]
    at = chance.choice(starts or [0]) + chance.randrange(21)
    data[min(at, len(data) - 1)] ^= 1 << chance.randrange(8)


def blank(data: bytearray, chance: random.Random) -> None:
    at, size = chance.randrange(len(data)), chance.choice([1, 64, 512, 4096])
    data[at : at + size] = bytes(len(data[at : at + size]))


def scribble(data: bytearray, chance: random.Random) -> None:
    at, size = chance.randrange(len(data)), chance.choice([8, 512])
    data[at : at + size] = chance.randbytes(len(data[at : at + size]))


def misdirect(data: bytearray, chance: random.Random) -> None:
    """A block of the file was written to the place of another one."""
    size = chance.choice([128, 512, 1024])
    source, target = (chance.randrange(0, len(data), 64) for _ in range(2))
    data[target : target + size] = data[source : source + size][: len(data) - target]


def repeat(data: bytearray, chance: random.Random) -> None:
    """A whole batch is there twice."""
    batches = list(walk({"0.log": bytes(data)}))
    if not batches:
        return
    one, other = chance.choice(batches), chance.choice(batches)
    data[other.position : other.position] = data[one.position : one.position + len(one.body) + 17]


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def cut_out(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.randrange(1, 300)]


def insert(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at:at] = chance.randbytes(chance.randrange(1, 100))


def extend(data: bytearray, chance: random.Random) -> None:
    data += bytes(chance.randrange(1, 5000))


DAMAGES: list[Callable[[bytearray, random.Random], None]] = [
    flip, flip_in_a_header, blank, scribble, misdirect, repeat, cut, cut_out, insert, extend,
]  # fmt: skip


def damaged(seed: int) -> tuple[str, dict[str, bytes], dict[str, bytes]]:
    """One to three damages of a Kafka-written partition: its name, its files before and after."""
    chance = random.Random(seed)
    name = chance.choice([name for name, files in PARTITIONS.items() if any(map(len, logs(files).values()))])
    files = dict(PARTITIONS[name])
    for _ in range(chance.choice([1, 1, 2, 3])):
        here = [each for each, content in logs(files).items() if content]
        if not here:
            break
        if len(here) > 2 and chance.random() < 0.1:
            del files[chance.choice(here)]
            continue
        file = chance.choice(here)
        data = bytearray(files[file])
        chance.choice(DAMAGES)(data, chance)
        files[file] = bytes(data)
    return name, PARTITIONS[name], files


def logs(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name.endswith(".log")}


def judge_seeds(seeds: range) -> Counter[str]:
    total = Counter[str]()
    for seed in seeds:
        name, before, after = damaged(seed)
        try:
            total += judge(before, after)
        except (AssertionError, pytest.fail.Exception) as error:
            raise AssertionError(f"seed {seed}, {name}: {error}") from error
    return total


def test_every_sound_batch_comes_back() -> None:
    assert judge_seeds(range(60))["back"] > 900


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_sound_batch_comes_back_from_a_thousand_damages() -> None:
    seen = judge_seeds(range(1000))
    assert seen["placed"] > 0
    assert seen["left out"] > 0


# --- cases ----------------------------------------------------------------------------------------


def batch(base: int, count: int = 2, *, epoch: int = 0, value: bytes = b"") -> bytes:
    records = [Record(base + each, 1000 + base, None, value or b"value-%d" % base) for each in range(count)]
    return encode_batch(records, base_offset=base, leader_epoch=epoch)


def segment(*batches: bytes, base: int = 0) -> dict[str, bytes]:
    return {f"{base:020d}.log": b"".join(batches)}


def header_set(data: bytes, *, base: int | None = None, epoch: int | None = None) -> bytes:
    changed = bytearray(data)
    if base is not None:
        struct.pack_into(">q", changed, 0, base)
    if epoch is not None:
        struct.pack_into(">i", changed, 12, epoch)
    return bytes(changed)


GOOD = [batch(each) for each in (0, 2, 4, 6, 8)]


def test_a_sound_partition_is_copied_as_it_is() -> None:
    files = segment(*GOOD) | segment(batch(10), base=10)
    result, found, _ = saved(files)
    assert {name: content for name, content in found.items() if name.endswith(".log")} == files
    assert (result.batches, result.records, result.start_offset, result.end_offset) == (6, 12, 0, 12)
    assert result.is_whole
    assert result.gaps == []


def test_a_bad_batch_leaves_a_gap() -> None:
    data = bytearray(b"".join(GOOD))
    data[len(GOOD[0]) * 2 + 70] ^= 1
    result, found, _ = saved({f"{0:020d}.log": bytes(data)})
    assert found[f"{0:020d}.log"] == b"".join(GOOD[:2] + GOOD[3:])
    (gap,) = result.gaps
    assert (gap.first_offset, gap.last_offset) == (4, 5)
    (stretch,) = gap.stretches
    assert (stretch.position, stretch.bytes) == (len(GOOD[0]) * 2, len(GOOD[2]))
    assert not result.is_whole


@pytest.mark.parametrize("wrong", [0, 2, 1 << 40, 7, -4])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_wrong_offset_is_put_right_where_one_place_is_left(place: int, wrong: int) -> None:
    data = list(GOOD)
    data[place] = header_set(data[place], base=wrong if wrong != 2 * place else 3)
    result, found, _ = saved(segment(*data))
    assert found[f"{0:020d}.log"] == b"".join(GOOD)
    assert [each.offset for each in result.placed] == [2 * place]
    assert result.left_out == []


@pytest.mark.parametrize("place", [0, 1, 4])
@pytest.mark.parametrize("epoch", [-(1 << 31), -7])
@pytest.mark.parametrize("known", [3, -1])
def test_an_epoch_below_all_is_put_right(place: int, epoch: int, known: int) -> None:
    """One bit of it flipped; only -1 means that a batch has none."""
    good = [header_set(each, epoch=known) for each in GOOD]
    bad = [header_set(each, epoch=epoch) if number == place else each for number, each in enumerate(good)]
    result, found, disk = saved(segment(*bad))
    assert found[f"{0:020d}.log"] == b"".join(good)
    assert [(each.epoch, each.epoch_in_file) for each in result.placed] == [(known, epoch)]
    opens_as_a_log(disk, list(walk(found)))


def test_a_batch_past_the_next_segment_stays_out() -> None:
    """A file under the name of a segment that never was: `8.log` has no batch that belongs there."""
    result, found, disk = saved(segment(*GOOD) | segment(batch(20), base=8))
    opens_as_a_log(disk, list(walk(found)))
    assert result.left_out
    assert not result.is_whole


def test_a_wrong_offset_without_one_place_is_left_out() -> None:
    """Compaction has removed offsets around it, so where it was is not known."""
    result, found, _ = saved(segment(GOOD[0], header_set(GOOD[2], base=0), GOOD[4]))
    assert found[f"{0:020d}.log"] == GOOD[0] + GOOD[4]
    (left,) = result.left_out
    assert (left.position, left.offset_in_file, left.records) == (len(GOOD[0]), 0, 2)


def test_a_wrong_offset_at_the_end_that_fits_before_the_right_one() -> None:
    """The last batch says offset 1, which another one holds: of the two, only it has another place."""
    data = [batch(0, 1), batch(1, 2), header_set(batch(3, 1), base=1)]
    result, found, _ = saved(segment(*data))
    assert found[f"{0:020d}.log"] == batch(0, 1) + batch(1, 2) + batch(3, 1)
    assert [(each.offset, each.offset_in_file) for each in result.placed] == [(3, 1)]


def test_a_misdirected_block_does_not_hide_what_it_contradicts() -> None:
    """A block of the end was written over the beginning: the longer row of batches stands."""
    good = [batch(each) for each in range(0, 20, 2)]
    result, found, _ = saved(segment(*good[8:], *good[2:]))
    assert found[f"{0:020d}.log"] == b"".join(good[2:])
    assert [each.offset_in_file for each in result.left_out] == [16, 18]


def test_a_wrong_offset_and_a_wrong_epoch_in_one_batch() -> None:
    data = [GOOD[0], header_set(GOOD[1], base=258, epoch=512), *GOOD[2:]]
    assert saved(segment(*data))[1][f"{0:020d}.log"] == b"".join(GOOD)


def test_a_copy_of_a_batch_is_not_put_in_the_place_of_another() -> None:
    """A misdirected write: it would fit there, but its records were never at these offsets."""
    result, found, _ = saved(segment(GOOD[0], GOOD[1], GOOD[1], GOOD[3], GOOD[4]))
    assert found[f"{0:020d}.log"] == b"".join([GOOD[0], GOOD[1], *GOOD[3:]])
    assert len(result.left_out) == 1


def test_a_file_that_is_there_twice_end_to_end() -> None:
    """Many copies cost no more than a look at each."""
    many = b"".join(batch(each, 1) for each in range(20_000))
    result, found, _ = saved({f"{0:020d}.log": many + many})
    assert found[f"{0:020d}.log"] == many
    assert len(result.left_out) == 20_000


def test_a_batch_in_the_value_of_a_damaged_one_does_not_come_back() -> None:
    """A topic of batches: an inner one is sound, but it is no batch of this log."""
    outer = bytearray(batch(2, count=1, value=batch(0)))
    outer[-1] ^= 1
    result, found, _ = saved(segment(GOOD[0], bytes(outer), batch(3), batch(5)))
    assert found[f"{0:020d}.log"] == GOOD[0] + batch(3) + batch(5)
    assert [(gap.first_offset, gap.last_offset) for gap in result.gaps] == [(2, 2)]


@pytest.mark.parametrize("wrong", [0, 512])
def test_a_wrong_epoch_is_put_right(wrong: int) -> None:
    good = [batch(each, epoch=3) for each in (0, 2, 4, 6)]
    result, found, _ = saved(segment(*good[:2], header_set(good[2], epoch=wrong), good[3]))
    assert found[f"{0:020d}.log"] == b"".join(good)
    assert [(each.epoch, each.epoch_in_file) for each in result.placed] == [(3, wrong)]
    assert found["leader-epoch-checkpoint"] == b"0\n1\n3 0\n"


def test_the_epoch_history_is_kept_if_it_fits() -> None:
    history = b"0\n3\n0 0\n1 2\n4 4\n"
    files = segment(batch(0), batch(4, epoch=4), base=0) | {"leader-epoch-checkpoint": history}
    assert saved(files)[1]["leader-epoch-checkpoint"] == history
    files["leader-epoch-checkpoint"] = b"0\n1\n7 0\n"
    assert saved(files)[1]["leader-epoch-checkpoint"] == b"0\n2\n0 0\n4 4\n"


def test_a_new_segment_of_an_interrupted_compaction() -> None:
    """Its old segment is gone: only the `.swap` file has these offsets."""
    files = segment(batch(4), base=4) | {f"{0:020d}.log.swap": GOOD[0] + GOOD[1]}
    result, found, _ = saved(files)
    assert found[f"{0:020d}.log"] == GOOD[0] + GOOD[1]
    assert result.records == 6


def test_the_topic_id_and_the_log_start_offset_come_along() -> None:
    identity = b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    files = segment(*GOOD) | {
        "partition.metadata": identity,
        "log-start-offset-checkpoint": b"0\n1\norders 0 4\n",
    }
    result, found, _ = saved(files)
    assert found["partition.metadata"] == identity
    assert found["log-start-offset-checkpoint"] == b"0\n1\norders 0 4\n"
    assert result.start_offset == 4


class BadPage:
    """A file of which one page cannot be read."""

    def __init__(self, data: bytes, page: int) -> None:
        self._data, self._page = data, page

    def pread(self, size: int, at: int) -> bytes:
        if at < 4096 * (self._page + 1) and 4096 * self._page < at + size:
            raise OSError(errno.EIO, "input/output error")
        return self._data[at : at + size]

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        pass


def test_bytes_that_the_disk_cannot_read() -> None:
    """The pages around them are read; the rest is as if zeros were there."""
    data = b"".join(batch(each, value=bytes([each + 1]) * 1500) for each in range(0, 40, 2))
    file = PatientFile(BadPage(data, 5))
    blanked = data[: 5 * 4096] + bytes(4096) + data[6 * 4096 :]
    assert file.pread(len(data), 0) == blanked
    assert file.pread(10, 6 * 4096 - 5) == blanked[6 * 4096 - 5 :][:10]
    assert file.unreadable_bytes == 4096
    found = sweep(file, len(data))
    assert [(each.position < 5 * 4096, each.end >= 6 * 4096) for each in found.bad] == [(True, True)]


def test_a_read_that_fails_once_is_tried_again_in_pages() -> None:
    memory = MemoryDisk({f"{SOURCE}/{name}": content for name, content in segment(*GOOD).items()})
    disk = FaultyDisk(memory, [Fault(operation="pread")])
    results: list[Salvage] = []
    salvage(disk, SOURCE, TARGET, results.append)
    assert disk.fired
    assert (results[0].batches, results[0].unreadable_bytes) == (5, 0)


# --- the target -----------------------------------------------------------------------------------


def test_refusals_change_nothing() -> None:
    disk = MemoryDisk({f"{SOURCE}/{0:020d}.log": GOOD[0], f"{TARGET}/note.txt": b"mine", "/empty/x": b""})
    before = disk.files()
    results: list[Salvage] = []
    for source, target, error in (
        (SOURCE, TARGET, FileExistsError),
        (SOURCE, f"{SOURCE}/new-0", FileExistsError),
        (f"{SOURCE}/..", "/dead", FileExistsError),
        ("/empty", "/new-0", FileNotFoundError),
        ("/nothing", "/new-0", FileNotFoundError),
    ):
        with pytest.raises(error):
            salvage(disk, os.path.normpath(source), target, results.append)
    assert disk.files() == before
    assert results == []


def test_two_salvages_into_one_directory() -> None:
    """The second removed what the first had written, which then said that all of it was there."""
    disk = MemoryDisk({f"{SOURCE}/{name}": content for name, content in segment(*GOOD).items()})
    salvage(disk, SOURCE, "/alone-0", lambda _: None)

    def meanwhile(_: Salvage) -> None:
        with pytest.raises(DirectoryLocked):
            salvage(disk, SOURCE, TARGET, lambda _: None)

    salvage(disk, SOURCE, TARGET, meanwhile)
    assert contents(disk, TARGET) == contents(disk, "/alone-0")
    assert not [path for path in disk.files() if ".claim" in path]


def test_an_interrupted_salvage_can_be_run_again_at_any_point() -> None:
    """Every call may fail: then there is no target, no room is taken, and the next run makes it whole."""
    files = {f"{SOURCE}/{name}": content for name, content in segment(*GOOD).items()}
    reference = MemoryDisk(files)
    salvage(reference, SOURCE, TARGET, lambda _: None)
    points = 0
    while True:
        memory = MemoryDisk(files)
        disk = FaultyDisk(memory, [Fault(at=points + 1, errno=28)])
        try:
            salvage(disk, SOURCE, TARGET, lambda _: None)
        except (OSError, DamagedLog):
            assert not [path for path in memory.files() if ".unfinished" in path]
        if not disk.fired:
            break
        points += 1
        survivor = memory.durable_image()
        if f"{TARGET}/{0:020d}.log" not in survivor.files():
            salvage(survivor, SOURCE, TARGET, lambda _: None)
        found = {path: of for path, of in survivor.files().items() if ".claim" not in path}
        assert found == reference.files()
    assert points > 10
