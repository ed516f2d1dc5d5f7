"""The crash lab's workloads on real file systems: a block device loses power, and the kernel mounts it.

`BlockLab` takes the place of `CrashLab`. It runs a workload on a mounted file system, draws moments between
the writes and flushes of its device, makes images that a power cut may leave then, mounts each, and has the
program recover on it. So what the crash lab takes for granted about file systems is tried on theirs.
"""

from __future__ import annotations

import gc
import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

from logstore.disk.files import LOCK_FILE, DirectoryEntry, Disk, Lock, OsDisk, OsFile, Room
from logstore.testing.crash import CrashReport, CrashViolation
from logstore.testing.disks import MemoryDisk, Operation, Profile, RecordingDisk
from tests.power.block_device import Device, Devices
from tests.power.crash_images import Change, after_a_power_cut, durable_and_pending

F = TypeVar("F")
P = TypeVar("P")


class DirectoryDisk(OsDisk):
    """The operating system's files below a directory: its root is the mount of a device."""

    def __init__(self, root: Path, clock: Callable[[], int]) -> None:
        self._root, self._clock = str(root), clock

    def _at(self, path: str) -> str:
        assert path.startswith("/")
        return self._root + path

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> OsFile:
        return super().open(self._at(path), create=create, exclusive=exclusive, write=write)

    def rename(self, source: str, target: str) -> None:
        super().rename(self._at(source), self._at(target))

    def link(self, source: str, target: str) -> None:
        super().link(self._at(source), self._at(target))

    def remove(self, path: str) -> None:
        super().remove(self._at(path))

    def scan(self, directory: str) -> list[DirectoryEntry]:
        """As the workloads' own disks: a file is as old as the workload's clock says."""
        found = super().scan(self._at(directory))
        return [each._replace(modified_ms=self._clock()) for each in found]

    def make_dir(self, path: str) -> None:
        super().make_dir(self._at(path))

    def remove_dir(self, path: str) -> None:
        super().remove_dir(self._at(path))

    def sync_dir(self, directory: str) -> None:
        super().sync_dir(self._at(directory))

    def lock(self, directory: str) -> Lock:
        return super().lock(self._at(directory))

    def room(self, directory: str) -> Room:
        return super().room(self._at(directory))


class _Moment(NamedTuple, Generic[P]):
    """From this position of a device on, this was promised; `is_watched` is the workload's."""

    position: int
    promise: P
    is_watched: bool


@dataclass
class _Phase(Generic[P]):
    """A device from its mount to the workload's next power cut."""

    device: Device
    moments: list[_Moment[P]] = field(default_factory=list)

    def at(self, position: int) -> _Moment[P]:
        """Return what holds when the device has come to a position."""
        return self.moments[bisect_right(self.moments, position, key=lambda each: each.position) - 1]

    @property
    def first(self) -> int:
        """The first position at which anything was promised."""
        return self.moments[0].position


class BlockRun(Generic[P]):
    """The workload's disk, and its promises: what `CrashRun` is in the crash lab."""

    def __init__(self, lab: BlockLab[Any, P], promise: P, memory: MemoryDisk, random: Random) -> None:
        self._lab, self._random = lab, random
        self.notes: list[str] = []
        self.calls: list[Operation] = []
        self.phases: list[_Phase[P]] = []
        self.promised, self._is_watched = promise, True
        self._begin(lab.devices.mount(lab.devices.blank, []))
        _copy(memory, "/", self.device.directory)
        self.device.sync()
        self.promise(promise)

    @property
    def device(self) -> Device:
        return self.phases[-1].device

    def _begin(self, device: Device) -> None:
        self.phases.append(_Phase(device))
        disk = DirectoryDisk(device.directory, self._lab.clock)
        self.disk: Disk = RecordingDisk(disk, before=self._before)

    def _before(self, operation: Operation) -> None:
        self.calls.append(operation)
        if self._random.random() < self._lab.syncs:
            self.device.sync()

    @property
    def is_watched(self) -> bool:
        """Whether images are made of the moments from now on; see `CrashRun`."""
        return self._is_watched

    @is_watched.setter
    def is_watched(self, is_watched: bool) -> None:
        self._is_watched = is_watched
        self.promise(self.promised)

    def promise(self, value: P) -> None:
        self.promised = value
        self.phases[-1].moments.append(_Moment(self.device.position, value, self._is_watched))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def power_cut(self, random: Random, _profile: Profile = Profile.POSIX) -> Disk:
        """Go on with what a power cut now may leave."""
        device, position = self.device, self.device.position
        changes = [change for at, change in device.changes() if at <= position]
        device.unmount()
        self._begin(self._lab.devices.mount(device.base, after_a_power_cut(changes, random)))
        self.promise(self.promised)
        return self.disk


class BlockLab(Generic[F, P]):
    """Tries workloads as `CrashLab` does, on devices. `moments` images are made of each workload.

    Of its other settings `seed` alone means the same. A quarter of the images lose power once more after
    the recovery, with nothing that was not flushed: the next one must find the same. With `syncs` the file
    system is told to write what it holds back before that part of the calls.
    """

    def __init__(
        self,
        recover: Callable[[Disk], F],
        judge: Callable[[F, P], None],
        *,
        devices: Devices,
        moments: int = 20,
        syncs: float = 0.1,
        seed: int = 0,
        clock: Callable[[], int] = lambda: 0,
        **_of_the_crash_lab: object,
    ) -> None:
        self.devices, self.clock, self.syncs = devices, clock, syncs
        self._recover, self._judge = recover, judge
        self._moments, self._seed = moments, seed

    def explore(
        self,
        workload: Callable[[Any], None],
        promise: P,
        *,
        name: str = "",
        disk: Callable[[], MemoryDisk] | None = None,
    ) -> CrashReport:
        """Run `workload`, then recover images of its device; see `CrashLab.explore`."""
        report = CrashReport(name or getattr(workload, "__name__", "workload"))
        random = Random(f"{self._seed} {report.workload}")
        run: BlockRun[P] = BlockRun(self, promise, MemoryDisk() if disk is None else disk(), random)
        workload(run)
        for phase in run.phases:
            self._explore(phase, run, report, random, self._moments // len(run.phases) + 1)
        for phase in run.phases[:-1]:
            phase.device.forget()
        self._leave(run.device)
        report.distinct = report.images
        return report

    def _explore(
        self, phase: _Phase[P], run: BlockRun[P], report: CrashReport, random: Random, count: int
    ) -> None:
        changes = list(phase.device.changes())
        reached = {at for at, _ in changes if at >= phase.first} | {phase.first}
        moments = sorted(at for at in reached if phase.at(at).is_watched)
        report.moments += len(moments)
        for moment in sorted(random.sample(moments, min(count, len(moments)))):
            report.images += 1
            left = after_a_power_cut([change for at, change in changes if at <= moment], random)
            is_cut_again = random.random() < 0.25
            error = self._problem(
                phase.device, left, phase.at(moment).promise, report, is_cut_again=is_cut_again
            )
            if error is not None:
                report.violations.append(
                    CrashViolation(
                        workload=report.workload,
                        id=f"seed {self._seed}, position {moment} of device {run.phases.index(phase) + 1}",
                        error=error,
                        lost=0,
                        before=f"change {moments.index(moment)} of {len(moments)}",
                        left=(),
                        operations=tuple(f"{call.name} {call.path}" for call in run.calls[-12:]),
                        notes=tuple(run.notes),
                    )
                )

    def _problem(
        self, of: Device, left: list[Change], promise: P, report: CrashReport, *, is_cut_again: bool
    ) -> str | None:
        device = self.devices.mount(of.base, left)
        try:
            report.states += 1
            found = self._recover(DirectoryDisk(device.directory, self.clock))
            self._judge(found, promise)
            if is_cut_again:
                report.second += 1
                changes = [change for _, change in device.changes()]
                again = self.devices.mount(of.base, [*durable_and_pending(changes)[0]])
                try:
                    found_again = self._recover(DirectoryDisk(again.directory, self.clock))
                finally:
                    self._leave(again)
                if found_again != found:
                    return f"found {found!r}, but {found_again!r} after the next crash"
        except Exception as error:
            return f"{type(error).__name__}: {error}" if not isinstance(error, AssertionError) else str(error)
        finally:
            self._leave(device)
        return None

    def _leave(self, device: Device) -> None:
        gc.collect()  # logs that a recovery opened and left
        device.unmount()
        device.forget()


def _copy(memory: MemoryDisk, directory: str, into: Path) -> None:
    """Write the files of a disk in memory into a directory."""
    for entry in memory.scan(directory):
        path, target = os.path.join(directory, entry.name), into / entry.name
        if entry.name == LOCK_FILE:
            continue
        if entry.is_directory:
            target.mkdir(exist_ok=True)
            _copy(memory, path, target)
        else:
            target.write_bytes(memory.open(path).pread(entry.size, 0))
