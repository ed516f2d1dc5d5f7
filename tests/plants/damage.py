"""Mistakes with damage: what is served, what is mended with what, who is told."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from logstore.disk.files import read_small_file
from logstore.disk.running import RUNNING_FILE
from logstore.format.crc import crc32c
from logstore.log import derived, heal, log_dir, recovery, scrub, truncate
from logstore.log.loading import Loading
from logstore.replication import healing
from logstore.segment.cutting import CutPlace, place_of_cut
from logstore.segment.scan import extents_of, scan_buffer
from logstore.segment.seal import Sealing
from logstore.testing.stories.rules import swap
from tests.plants.registry import plant


@plant("damage is noted, and nobody is asked for sound batches (decision 056)")
def damage_only_noted(stack: ExitStack) -> None:
    swap(stack, healing, "pump", lambda manager, now_ms: None)


@plant("a mended segment takes whatever batches are sent (decision 056)", is_rare=True)
def mended_with_anything(stack: ExitStack) -> None:
    def take(self: Any, cleaned: Any, found: Any, at: int, wanted: Any, *, must_fill: bool) -> int:
        scanned = scan_buffer(found.records, len(found.records))
        cleaned.append(bytes(found.records[: scanned.end]), extents_of(scanned.headers))
        self._fetched += len(scanned.headers)
        return int(wanted.end_offset)

    swap(stack, heal._Mending, "_take", take)


@plant("a mending leaves the damaged offsets out and fetches nothing (decision 056)")
def gaps_left_out(stack: ExitStack) -> None:
    def fetch(self: Any, cleaned: Any, gap: Any) -> Any:
        return
        yield

    swap(stack, heal._Mending, "_fetch", fetch)


@plant("a cut takes the damage in front of it along (decision 056)", is_rare=True)
def cut_where_damage_begins(stack: ExitStack) -> None:
    def place(segment: Any, offset: int, **facts: Any) -> CutPlace:
        found = place_of_cut(segment, offset, **facts)
        if not found.is_across:
            return found
        return CutPlace(found.damages[-1].position, found.end_offset, found.damages[:-1])

    swap(stack, truncate, "place_of_cut", place)


@plant("a scrub reads the batches, and no file that follows from them (decision 068)")
def derived_files_not_compared(stack: ExitStack) -> None:
    def check(log: Any, segment: Any) -> Any:
        return []
        yield

    swap(stack, scrub, "check_segment_files", check)
    swap(stack, scrub, "check_log_files", lambda log: [])


@plant("a seal vouches for index files as the disk has them (decision 104)")
def seal_of_what_the_disk_has(stack: ExitStack) -> None:
    """Two rules protect it: digests of what was written, and a comparison with the batches at first."""
    make, judge = Sealing.make, derived._contradicting

    def make_of_files(self: Any, end_offset: int, successor: int) -> None:
        segment = self._segment
        for index in (segment.indexes.offsets, segment.indexes.times):
            index.crc = crc32c(read_small_file(segment.disk, index.path) or b"")
        make(self, end_offset, successor)

    def judge_unsealed(log: Any, segment: Any, offsets: Any, times: Any) -> Any:
        return [] if segment.seal is not None else (yield from judge(log, segment, offsets, times))

    swap(stack, Sealing, "make", make_of_files)
    swap(stack, derived, "_contradicting", judge_unsealed)


@plant("after a kill a bad batch past the recovery point is cut as a torn one (decision 040)", is_rare=True)
def tail_of_a_kill_cut(stack: ExitStack) -> None:
    swap(stack, Loading, "tail_may_be_torn", property(lambda loading: loading.knows_durable_end))


@plant("the running marker of another boot is believed (decision 040)")
def any_boot_believed(stack: ExitStack) -> None:
    def has_run_on(disk: Any, directory: str, boot_id: str) -> bool:
        return bool(boot_id) and RUNNING_FILE in {entry.name for entry in disk.scan(directory)}

    swap(stack, log_dir, "has_run_on", has_run_on)


@plant("an epoch file that parses is believed at a start (decision 103)")
def epoch_file_believed(stack: ExitStack) -> None:
    swap(stack, recovery, "check_epochs", lambda loading, log_start_offset, durable_end, *, is_clean: None)
