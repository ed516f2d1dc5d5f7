"""The crash lab: every disk that a power cut may leave of a program's files, with your check on each.

    workload(run)     your program: it writes through `run.disk` and calls `run.promise(…)`
       │              before every call that changes the disk, the lab takes images
       ▼
    images            for two kinds of file system: all unsynced operations survive, none, each alone,
       │              each missing, torn at critical bytes, and a fair sample of the rest
       ▼
    recover(disk)     your program's start after the crash; returns what it finds
       ▼
    judge(found, promise)      raises if promised data is missing, or unwritten data appears

    lab = CrashLab(recover, judge)
    report = lab.explore(workload)
    assert report.is_good, report

The lab itself checks on each image that `recover` raises nothing, and that a second power cut right after
it changes nothing (`recover` finds the same again). At each moment it also kills the process with the
power on: the next start then finds all data, even unsynced data, and what it shows must survive a power
cut during or after that start. With `depth=2` the power also fails before every call of `recover`; with 3,
once more in that recovery. `disks/leftovers.py` defines which images are legal.

Images with equal content and equal promise are judged once, and equal disks are recovered once. So
`recover` must be a function of the disk alone. The report counts the enumerated images and the distinct
ones. Every image has an id; `replay` makes it again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, NamedTuple, TypeVar

from logstore.arguments import as_callback, as_int
from logstore.disk.files import Disk
from logstore.testing.disks import MemoryDisk, Operation, Profile, RecordingDisk
from logstore.testing.disks.leftovers import Choice, Leftovers, Picture, Pictures, number_of

P = TypeVar("P")
F = TypeVar("F")

_NOTHING = Choice(0, ())
_LETTERS = {Profile.JOURNALED: "j", Profile.POSIX: "p"}
_PROFILES = {letter: profile for profile, letter in _LETTERS.items()}
_ID = re.compile(r"(\d+)(?:k|([jp])([0-9a-f]+)-([\d.]*))")


class ImageId(NamedTuple):
    """An image of a run: the moment (a count of calls), the kind of file system, and what survived.

    Without a profile it is not a power cut: the process was killed, and everything is there.
    """

    moment: int
    profile: Profile | None
    choice: Choice = _NOTHING

    def __str__(self) -> str:
        if self.profile is None:
            return f"{self.moment}k"
        fates = ".".join(map(str, self.choice.contents))
        return f"{self.moment}{_LETTERS[self.profile]}{self.choice.names:x}-{fates}"

    @classmethod
    def parse(cls, text: str) -> ImageId:
        """Return the id that `text` stands for. Raises `ValueError` if it is not an id."""
        match = _ID.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not the id of a crash image (such as 47p1f-0.2)")
        if match[2] is None:
            return cls(int(match[1]), None)
        fates = tuple(int(fate) for fate in match[4].split(".")) if match[4] else ()
        return cls(int(match[1]), _PROFILES[match[2]], Choice(int(match[3], 16), fates))


@dataclass(frozen=True, slots=True)
class CrashViolation:
    """An image that broke a promise. `lost` counts the operations that did not survive in full.

    `id` reproduces it (`CrashLab.replay`); a crash during recovery gives two ids joined by `+`.
    `operations` are the last calls before the cut, `notes` the notes of the workload.
    """

    workload: str
    id: str
    error: str
    lost: int
    before: str
    left: tuple[str, ...]
    operations: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.workload}: {self.error}",
                f"  image {self.id}: crash before {self.before}, {self.lost} operations incomplete",
                *(f"    {line}" for line in self.left),
                *(f"  doing: {note}" for note in self.notes[-1:]),
                "  last calls:",
                *(f"    {call}" for call in self.operations),
            ]
        )


@dataclass(slots=True)
class CrashReport:
    """The result of one exploration.

    `images` were enumerated at `moments`. `distinct` of them differ in content or promise. `states` of
    these had to be recovered, because no earlier image had the same content. `second` counts the images of
    crashes during and after those recoveries. `violations` are in the order found.
    """

    workload: str
    moments: int = 0
    images: int = 0
    distinct: int = 0
    states: int = 0
    second: int = 0
    violations: list[CrashViolation] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Return whether no violation was found."""
        return not self.violations

    @property
    def simplest(self) -> CrashViolation | None:
        """The violation with the fewest crashes, and among those with the fewest operations lost."""
        return min(self.violations, key=lambda each: (each.id.count("+"), each.lost), default=None)

    def __str__(self) -> str:
        facts = (
            f"{self.workload}: {self.moments} moments, {self.images} images, {self.distinct} distinct, "
            f"{self.second} of a second crash, {len(self.violations)} violations"
        )
        return facts if self.simplest is None else f"{facts}; the simplest:\n{self.simplest}"


class CrashRun(Generic[P]):
    """The workload's disk, and its promises."""

    def __init__(
        self, memory: MemoryDisk, promise: P, before: Callable[[CrashRun[P], Operation | None], None]
    ) -> None:
        self._before = before
        self.notes: list[str] = []
        self.calls: list[Operation] = []
        self.promised = promise
        self.is_watched = True
        """Whether images are taken from now on; a workload may skip moments that other workloads show."""
        self.memory = memory
        self.disk: Disk
        self._use(memory)

    def _use(self, memory: MemoryDisk) -> None:
        self.memory = memory
        self.disk = RecordingDisk(memory, before=self._reached)

    def _reached(self, operation: Operation) -> None:
        self._before(self, operation)
        self.calls.append(operation)

    def promise(self, value: P) -> None:
        """Judge images by this from now on.

        Call it before anything that the new promise allows can reach the disk, and after everything that
        it demands has reached the disk.
        """
        self.promised = value

    def note(self, text: str) -> None:
        """Record what the workload is doing, for the reader of a violation."""
        self.notes.append(text)

    def power_cut(self, random: Random, profile: Profile = Profile.POSIX) -> Disk:
        """Cut the power within the workload: from now on, `disk` is a random legal image of it."""
        self._use(self.memory.power_cut(random, profile))
        return self.disk


@dataclass(slots=True)
class _Outcome(Generic[F]):
    """The result of recovering one state."""

    found: F | None = None
    error: str | None = None
    end: int = -1
    """The state of the disk after it and one more power cut."""
    has_seconds: bool = False
    on_the_way: dict[int, ImageId] = field(default_factory=dict)
    """States after a crash in the middle of it, each with an image that leads to it."""
    behind: dict[int, ImageId] = field(default_factory=dict)
    """States after a crash right after it."""
    second_images: int = 0


class _Enough(BaseException):
    """This workload has nothing more to show."""


class CrashLab(Generic[F, P]):
    """Explores workloads with one `recover` and one `judge`; what it learns of a disk serves all
    workloads.

    `goes_on`, if given, runs once on a copy of each state that recovery ends in. It may write; an
    exception counts as a violation. `images` limits the images per moment and profile, `second_images`
    those of the moments of a recovery. `depth` is the number of power cuts in a row. With `kills=False` no
    process is killed with the power on: for programs that may show data that is not safe yet. `seed`
    chooses the sample where the limits apply. After `stop_after` violations a workload is given up.
    `clock` gives modification times.
    """

    def __init__(
        self,
        recover: Callable[[Disk], F],
        judge: Callable[[F, P], None],
        *,
        goes_on: Callable[[MemoryDisk], None] | None = None,
        profiles: Sequence[Profile] = tuple(Profile),
        images: int = 48,
        second_images: int = 8,
        depth: int = 1,
        kills: bool = True,
        seed: int = 0,
        stop_after: int = 100,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self._recover = as_callback(recover, "recover")
        self._judge = as_callback(judge, "judge")
        self._goes_on = None if goes_on is None else as_callback(goes_on, "goes_on")
        self._profiles = tuple(profiles)
        self.images = as_int(images, "images")
        self._second_images = as_int(second_images, "second_images")
        self._depth = as_int(depth, "depth", least=1)
        self.kills = kills
        self._seed = seed
        self.stop_after = as_int(stop_after, "stop_after", least=1)
        self._clock = clock
        self._pictures = Pictures(clock)
        self._states: dict[Picture, int] = {}
        self._picture_of: list[Picture] = []
        self._outcomes: dict[int, _Outcome[F]] = {}
        self._ends: dict[int, str | None] = {}

    # --- exploring ------------------------------------------------------------------------------------

    def explore(
        self,
        workload: Callable[[CrashRun[P]], None],
        promise: P,
        *,
        name: str = "",
        disk: Callable[[], MemoryDisk] | None = None,
    ) -> CrashReport:
        """Run `workload` on a new disk (of `disk`, if given), with a power cut before its every call.

        `promise` holds before it starts. Exceptions of the workload itself come out.
        """
        report = CrashReport(name or getattr(workload, "__name__", "workload"))
        exploration = _Exploration(self, report)
        run = CrashRun(self._new_disk(disk), promise, exploration.before)
        try:
            workload(run)
            exploration.before(run, None)
        except _Enough:
            pass
        report.violations = list(exploration.violations.values())
        return report

    def replay(
        self,
        workload: Callable[[CrashRun[P]], None],
        promise: P,
        image: str,
        *,
        disk: Callable[[], MemoryDisk] | None = None,
    ) -> tuple[MemoryDisk, P]:
        """Return the image with that id, and the promise it must keep. The workload must be the same.

        Raises `ValueError` for text that is not an id, or an id of another workload.
        """
        first, *others = [ImageId.parse(part) for part in image.split("+")]
        found: list[tuple[MemoryDisk, P]] = []
        moments = 0

        def before(run: CrashRun[P], _operation: Operation | None) -> None:
            nonlocal moments
            if moments == first.moment and not found:
                found.append((self._image(run.memory, first), run.promised))
                raise _Enough
            moments += 1

        run = CrashRun(self._new_disk(disk), promise, before)
        try:
            workload(run)
            before(run, None)
        except _Enough:
            pass
        if not found:
            raise ValueError(f"the workload has only {moments} moments, not number {first.moment}")
        memory, promised = found[0]
        for second in others:
            memory = self._second_image(memory, second)
        return memory, promised

    def _new_disk(self, disk: Callable[[], MemoryDisk] | None) -> MemoryDisk:
        return MemoryDisk(clock=self._clock) if disk is None else disk()

    def _image(self, memory: MemoryDisk, image: ImageId) -> MemoryDisk:
        if image.profile is None:
            return memory.survivor()
        leftovers = Leftovers(memory, image.profile, self._pictures)
        return self._pictures.disk(leftovers.picture(image.choice))

    def _second_image(self, memory: MemoryDisk, image: ImageId) -> MemoryDisk:
        found: list[MemoryDisk] = []
        moments = 0

        def before(_operation: Operation | None) -> None:
            nonlocal moments
            if moments == image.moment and not found:
                found.append(self._image(memory, image))
            moments += 1

        try:
            _ = self._recover(RecordingDisk(memory, before=before))
        except (
            Exception
        ):  # the first crash may have left a disk that cannot be recovered: this was the finding
            pass
        before(None)
        if not found:
            raise ValueError(f"the recovery has only {moments} moments, not number {image.moment}")
        return found[0]

    # --- what is known of disks -----------------------------------------------------------------------

    def state_of(self, leftovers: Leftovers, choice: Choice) -> int:
        """Return the number of the content that the disk then has."""
        return number_of(leftovers.picture(choice), self._states, self._picture_of)

    def sample(self, memory: MemoryDisk, moment: int, limit: int) -> list[tuple[int, ImageId, Leftovers]]:
        """Return images of this moment, each different choice once."""
        images = []
        for profile in self._profiles:
            leftovers = Leftovers(memory, profile, self._pictures)
            random = Random(f"{self._seed} {moment} {profile.value}")
            for choice in leftovers.choices(limit, random):
                image = ImageId(moment, profile, choice)
                images.append((self.state_of(leftovers, choice), image, leftovers))
        return images

    def problems(self, state: int, promise: P, report: CrashReport, depth: int = 0) -> tuple[str, str] | None:
        """Return why this state breaks the promise, and the ids of the later crashes; None if it keeps it."""
        depth = depth or self._depth
        return self._problems(self._outcome(state, report, seconds=depth > 1), promise, report, depth)

    def problems_of_a_kill(
        self, memory: MemoryDisk, promise: P, report: CrashReport
    ) -> tuple[str, str] | None:
        """Do the same for a process that is killed now and restarted with the power on."""
        outcome = self._recovered(memory.survivor(), True)
        report.states += 1
        report.second += outcome.second_images
        return self._problems(outcome, promise, report, 2)

    def _problems(
        self, outcome: _Outcome[F], promise: P, report: CrashReport, depth: int
    ) -> tuple[str, str] | None:
        if outcome.error is not None:
            return outcome.error, ""
        try:
            verdict: object = self._judge(outcome.found, promise)  # type: ignore[arg-type]
        except Exception as error:
            return _text(error), ""
        _refuse_verdict("judge", verdict)
        if (error_after := self._end(outcome, report)) is not None:
            return error_after, ""
        if depth > 1:
            for second, image in outcome.on_the_way.items():
                if (problem := self.problems(second, promise, report, depth - 1)) is not None:
                    return f"after a second crash: {problem[0]}", f"+{image}{problem[1]}"
            for second, image in outcome.behind.items():
                again = self._outcome(second, report, seconds=False)
                if (difference := _difference(outcome, again)) is not None:
                    return difference, f"+{image}"
        return None

    def _outcome(self, state: int, report: CrashReport, *, seconds: bool) -> _Outcome[F]:
        outcome = self._outcomes.get(state)
        if outcome is None or (seconds and not outcome.has_seconds and outcome.error is None):
            memory = self._pictures.disk(self._picture_of[state])
            outcome = self._outcomes[state] = self._recovered(memory, seconds)
            report.states += 1
            report.second += outcome.second_images
        return outcome

    def _recovered(self, memory: MemoryDisk, seconds: bool) -> _Outcome[F]:
        outcome: _Outcome[F] = _Outcome()
        moment = 0

        def gather(into: dict[int, ImageId]) -> None:
            for second, image, _ in self.sample(memory, moment, self._second_images):
                outcome.second_images += 1
                into.setdefault(second, image)

        def collect(_operation: Operation) -> None:
            nonlocal moment
            gather(outcome.on_the_way)
            moment += 1

        try:
            outcome.found = self._recover(RecordingDisk(memory, before=collect) if seconds else memory)
        except Exception as error:
            outcome.error = _text(error)
            return outcome
        if seconds:
            gather(outcome.behind)
            outcome.has_seconds = True
        leftovers = Leftovers(memory, Profile.POSIX, self._pictures)
        outcome.end = self.state_of(leftovers, leftovers.least)
        return outcome

    def _end(self, outcome: _Outcome[F], report: CrashReport) -> str | None:
        """Return what is wrong with the state that a recovery ends in; None if nothing is."""
        again = self._outcome(outcome.end, report, seconds=False)
        if (difference := _difference(outcome, again)) is not None:
            return difference
        if outcome.end not in self._ends:
            error_text = None
            if self._goes_on is not None:
                try:
                    verdict: object = self._goes_on(self._pictures.disk(self._picture_of[outcome.end]))
                except Exception as error:
                    error_text = f"continuing after it: {_text(error)}"
                else:
                    _refuse_verdict("goes_on", verdict)
            self._ends[outcome.end] = error_text
        return self._ends[outcome.end]


class _Exploration(Generic[F, P]):
    """One workload on its way through the lab."""

    def __init__(self, lab: CrashLab[F, P], report: CrashReport) -> None:
        self._lab = lab
        self._report = report
        self._seen: set[tuple[int, int]] = set()
        self._promises: dict[object, int] = {}
        self._kept: list[P] = []  # keeps promises alive, so that no other gets the identity of one
        self._lock = threading.RLock()
        self._calls = 0
        self.violations: dict[tuple[int, int], CrashViolation] = {}

    def before(self, run: CrashRun[P], operation: Operation | None) -> None:
        with self._lock:
            if len(self.violations) < self._lab.stop_after:
                if run.is_watched:
                    self._moment(run, operation)
                self._calls += 1
            # Also at calls of a workload that cleans up after itself.
            if len(self.violations) >= self._lab.stop_after:
                raise _Enough

    def _moment(self, run: CrashRun[P], operation: Operation | None) -> None:
        lab, report = self._lab, self._report
        promise = run.promised
        number = self._number(promise)
        for state, image, leftovers in lab.sample(run.memory, self._calls, lab.images):
            report.images += 1
            key = (state, number)
            known = self.violations.get(key)
            if known is None:
                if key in self._seen:
                    continue
                self._seen.add(key)
                report.distinct += 1
                problem = lab.problems(state, promise, report)
                if problem is None:
                    continue
            elif leftovers.lost(image.choice) < known.lost:
                # The same disk with fewer operations lost.
                problem = known.error, "".join(f"+{part}" for part in known.id.split("+")[1:])
            else:
                continue
            self._note(key, run, operation, f"{image}{problem[1]}", problem[0], leftovers, image.choice)
        if lab.kills:
            report.images += 1
            report.distinct += 1
            problem = lab.problems_of_a_kill(run.memory, promise, report)
            if problem is not None:
                key = (-1 - self._calls, number)
                self._note(key, run, operation, f"{ImageId(self._calls, None)}{problem[1]}", problem[0])
        report.moments += 1

    def _note(
        self,
        key: tuple[int, int],
        run: CrashRun[P],
        operation: Operation | None,
        image: str,
        error: str,
        leftovers: Leftovers | None = None,
        choice: Choice = _NOTHING,
    ) -> None:
        self.violations[key] = CrashViolation(
            workload=self._report.workload,
            id=image,
            error=error,
            lost=0 if leftovers is None else leftovers.lost(choice),
            before="the end" if operation is None else _call(operation),
            left=("the process is killed with the power on",)
            if leftovers is None
            else tuple(leftovers.describe(choice)),
            operations=tuple(_call(call) for call in run.calls[-12:]),
            notes=tuple(run.notes),
        )

    def _number(self, promise: P) -> int:
        try:
            key: object = (promise,)
            number = self._promises.setdefault(key, len(self._promises))
        except TypeError:  # not hashable: only equal to itself
            number = self._promises.setdefault(id(promise), len(self._promises))
            self._kept.append(promise)
        return number


def _refuse_verdict(name: str, verdict: object) -> None:
    if isinstance(verdict, bool):
        raise TypeError(
            f"{name} returned {verdict}, which is not used: raise an error instead, as assert does"
        )


def _difference(first: _Outcome[F], again: _Outcome[F]) -> str | None:
    if again.error is not None:
        return f"recovered once but not after the next crash: {again.error}"
    if again.found != first.found:
        return f"found {first.found!r}, but {again.found!r} after the next crash"
    return None


def _call(operation: Operation) -> str:
    name, path, offset, length, _, target = operation
    match name:
        case "pwrite":
            return f"pwrite {path} [{offset}, {offset + length})"
        case "truncate":
            return f"truncate {path} to {length}"
        case "rename":
            return f"rename {path} to {target}"
    return f"{name} {path}"


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, AssertionError) else str(error)
