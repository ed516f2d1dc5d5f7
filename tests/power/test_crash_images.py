"""The images of a disk after a power cut: flushed writes are in all of them, later ones in any part."""

from __future__ import annotations

from random import Random

from tests.power.crash_images import FLUSH, SECTOR, Change, Write, after_a_power_cut

OLD, NEW = b"o" * SECTOR * 2, b"n" * SECTOR * 2


def content(changes: list[Change], size: int = 6 * SECTOR) -> bytes:
    disk = bytearray(size)
    for change in changes:
        if isinstance(change, Write):
            disk[change.offset : change.offset + len(change.data)] = change.data
    return bytes(disk)


def images(changes: list[Change]) -> set[bytes]:
    return {content(after_a_power_cut(changes, Random(seed))) for seed in range(500)}


def test_what_was_flushed_survives() -> None:
    flushed: list[Change] = [Write(0, OLD), Write(SECTOR, NEW), FLUSH]
    assert images(flushed) == {content(flushed)}
    assert all(image[:SECTOR] == OLD[:SECTOR] for image in images([*flushed, Write(SECTOR, OLD)]))


def test_later_writes_survive_in_any_part_and_order() -> None:
    """Each of the four sectors alone: the second write without the first, and either torn."""
    found = images([FLUSH, Write(0, NEW), Write(2 * SECTOR, NEW)])
    sectors = {tuple(image[at * SECTOR] != 0 for at in range(4)) for image in found}
    assert len(sectors) == 16


def test_no_sector_is_torn() -> None:
    """A write that begins inside of a sector is torn where the sector ends."""
    for image in images([Write(0, OLD), FLUSH, Write(512, NEW)]):
        for start, stop in ((512, SECTOR), (SECTOR, 2 * SECTOR), (2 * SECTOR, 2 * SECTOR + 512)):
            assert len({*image[start:stop]}) == 1


def test_of_an_overwritten_sector_either_content_may_be_left() -> None:
    found = images([Write(0, OLD), FLUSH, Write(0, NEW)])
    assert {OLD, NEW} < {image[: 2 * SECTOR] for image in found}


def test_what_a_cut_left_is_there_for_good() -> None:
    """The disk goes on with it: it is durable for the next cut."""
    left = after_a_power_cut([Write(0, NEW)], Random(3))
    assert images(left) == {content(left)}
