"""Enumerate every disk that a power cut may leave; `MemoryDisk.image` draws one of them.

    Leftovers(disk, profile, pictures)     one moment of a `MemoryDisk`
      choices(limit, random)               which unsynced operations survive, and how
      picture(choice)                      the content of the disk as numbers: equal disks, equal pictures
    Pictures
      disk(picture)                        the `MemoryDisk` itself, made only when it is needed

Every legal image is one `Choice`: a set of directory operations that survive, and for each file with
unsynced writes one of its possible contents.

    all · none                              of its unsynced operations
    prefix p                                the first p of them, also with the final length, zeros in the gap
    torn k at c · late k at c               those before k; of write k the bytes before, or behind, byte c
    without k · alone k                     one lost under the later ones, or the only one that survives
    zeros, garbage                          the final length without its bytes (garbage in `posix` only)
    pieces                                  any sectors of any writes, a few drawn

Directory operations survive as a prefix in `journaled`, as any subset in `posix`: all subsets if there are
few; otherwise none, all, each alone, each missing, and some drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from random import Random
from typing import NamedTuple, TypeAlias, TypeVar

from logstore.disk.memory import MemoryDisk, Profile
from logstore.disk.memory_nodes import Body, Change, Directory, Inode, Node, Step, redo
from logstore.disk.power_cut import pieces, surviving_tables

K = TypeVar("K")
Picture: TypeAlias = tuple[int, ...]
"""A whole disk: the ascending numbers that `Pictures` gave to its content."""

_CUTS = (
    1,
    17,
    61,
)  # inside a header, at the end of Kafka's 17 bytes without checksum, at the end of a header
_SECTOR = 512
_FEW = 4
_DRAWN_SUBSETS = 6
_DRAWN_PIECES = 3


class Choice(NamedTuple):
    """`names`: bit k is set if directory operation k survives; `contents`: the fate of each file."""

    names: int
    contents: tuple[int, ...]


class Fate(NamedTuple):
    """The fate of one file's unsynced operations, in this module's terms."""

    kind: str
    step: int = 0
    cut: int = 0

    def text(self, steps: int) -> str:
        match self.kind:
            case "all" | "none":
                return f"{self.kind} of {steps} operations"
            case "torn":
                return f"operation {self.step} up to byte {self.cut}, and all before it"
            case "late":
                return f"operation {self.step} from byte {self.cut} on, and all before it"
            case "without":
                return f"all of {steps} but operation {self.step}"
            case "alone":
                return f"operation {self.step} alone, of {steps}"
            case "pieces":
                return f"sectors of {steps} operations, drawing {self.step}"
        then = {"prefix": "", "zeros": ", then zeros", "garbage": ", then garbage"}[self.kind]
        return f"the first {self.step} of {steps} operations{then}"


# --- what disks look like ---------------------------------------------------------------------------


def number_of(key: K, numbers: dict[K, int], keys: list[K]) -> int:
    """Return the number of a key, its place in `keys`; the next one if it is new."""
    number = numbers.setdefault(key, len(keys))
    if number == len(keys):
        keys.append(key)
    return number


class Pictures:
    """Numbers for everything that can be on a disk. Disks with the same picture have the same content."""

    def __init__(self, clock: Callable[[], int] = lambda: 0) -> None:
        self._clock = clock
        self._contents: dict[tuple[bytes, int], int] = {}
        self._bodies: list[tuple[bytes, int]] = []
        self._entries: dict[tuple[str, int, int], int] = {}
        self._places: list[tuple[str, int, int]] = []

    def content(self, body: Body) -> int:
        """Return the number of a file's content; a hole at its end counts as zeros."""
        key = (bytes(body.buffer[: body.size]).rstrip(b"\0"), body.size)
        return number_of(key, self._contents, self._bodies)

    def entry(self, path: str, content: int, modified_ms: int) -> int:
        """Return the number of a file with that content under that path; -1 as content stands for a
        directory."""
        key = (path, content, modified_ms)
        return number_of(key, self._entries, self._places)

    def disk(self, picture: Picture) -> MemoryDisk:
        """Return a new disk with the content of the picture, all of it durable."""
        disk = MemoryDisk(clock=self._clock)
        directories = {"": disk._root}
        for path, content, modified_ms in sorted(self._places[number] for number in picture):
            above, _, name = path.rpartition("/")
            node: Node
            if content < 0:
                node = directories[path] = Directory(modified_ms)
            else:
                data, size = self._bodies[content]
                node = Inode(Body(bytearray(data), size), modified_ms)
                node.links = 1
                disk._used += node.charged
            parent = directories[above]
            parent.entries[name] = parent.durable[name] = node
        return disk


# --- one file ----------------------------------------------------------------------------------------


class _Unsynced:
    """A file with operations since its last sync, and their possible fates."""

    def __init__(self, inode: Inode, profile: Profile) -> None:
        self.inode = inode
        self.journal = list(inode.journal)
        self._durable = inode.durable()
        self.fates = list(self._all_fates(profile))
        self.contents: dict[int, int] = {}  # fate → number of the content, as far as known

    def _all_fates(self, profile: Profile) -> Iterator[Fate]:
        steps = len(self.journal)
        yield Fate("all")
        yield Fate("none")
        grows = self.inode.body.size > self._durable.size
        tails = ["zeros", *(["garbage"] if profile is Profile.POSIX else [])] if grows else []
        for tail in tails:
            yield Fate(tail, 0)
        for number, step in enumerate(self.journal):
            if number:
                yield Fate("prefix", number)
                for tail in tails:
                    yield Fate(tail, number)
            if steps > 1:
                yield Fate("without", number)
                yield Fate("alone", number)
            for cut in _cuts(step):
                yield Fate("torn", number, cut)
                yield Fate("late", number, cut)
        if steps > 1 or any(len(step.data or b"") > _SECTOR for step in self.journal):
            for number in range(_DRAWN_PIECES):
                yield Fate("pieces", number)

    def lost(self, fate: Fate) -> int:
        """Return how many operations do not survive in full."""
        steps = len(self.journal)
        match fate.kind:
            case "all":
                return 0
            case "none" | "pieces":
                return steps
            case "without":
                return 1
            case "alone":
                return steps - 1
        return steps - fate.step

    def body(self, fate: Fate) -> Body:
        body, journal = self._durable.copy(), self.journal
        match fate.kind:
            case "all":
                survivors = journal
            case "without":
                survivors = journal[: fate.step] + journal[fate.step + 1 :]
            case "alone":
                survivors = journal[fate.step : fate.step + 1]
            case "none":
                survivors = []
            case "pieces":
                survivors = list(self._drawn_pieces(fate.step))
            case _:
                survivors = journal[: fate.step]
        for step in survivors:
            redo(body, step)
        step = journal[fate.step] if fate.kind in ("torn", "late") else Step(0, b"", b"", 0)
        if step.data and fate.kind == "torn":
            body.write(step.data[: fate.cut], step.at)
        elif step.data and fate.kind == "late":  # the later part reached the disk first: a hole before it
            body.write(step.data[fate.cut :], step.at + fate.cut)
        missing = self.inode.body.size - body.size
        if fate.kind == "garbage" and missing > 0:
            body.write(Random(f"garbage {fate.step}").randbytes(missing), body.size)
        elif fate.kind == "zeros" and missing > 0:
            body.resize(self.inode.body.size)
        return body

    def _drawn_pieces(self, number: int) -> Iterator[Step]:
        random = Random(f"pieces {number} of {len(self.journal)}")
        likelihood = (0.5, 0.9, 0.1)[number % 3]
        for step in self.journal:
            for piece in pieces(step, _SECTOR):
                if random.random() < likelihood:
                    yield piece


def _cuts(step: Step) -> list[int]:
    if not step.data:
        return []
    length = len(step.data)
    sector = _SECTOR - step.at % _SECTOR
    return sorted(cut for cut in {*_CUTS, length // 2, length - 1, sector} if 0 < cut < length)


# --- one moment ----------------------------------------------------------------------------------------


class Leftovers:
    """The possible states of `disk` after a power cut now. Use it before the disk changes again."""

    def __init__(self, disk: MemoryDisk, profile: Profile, pictures: Pictures) -> None:
        self._disk = disk
        self._profile = profile
        self._pictures = pictures
        self._changes: list[Change] = list(disk._changes)
        journaled = profile is Profile.JOURNALED
        self._certain = _mask(change.ordered if journaled else change.synced for change in self._changes)
        self._every = (1 << len(self._changes)) - 1
        self._trees: dict[int, tuple[list[int], list[tuple[str, int]]]] = {}
        self._files = [_Unsynced(inode, profile) for inode in _inodes(disk) if inode.journal]
        self._numbers = {file.inode: number for number, file in enumerate(self._files)}

    @property
    def least(self) -> Choice:
        """The choice in which only synced data survives."""
        return Choice(self._certain, (1,) * len(self._files))

    def choices(self, limit: int, random: Random) -> list[Choice]:
        """Return at most `limit` choices: both extremes, the most revealing ones, a sample of the rest."""
        fates = [range(len(file.fates)) for file in self._files]
        masks = self._masks(random)
        size = len(masks)
        for of_file in fates:
            size *= len(of_file)
        if size <= limit:
            return [Choice(mask, contents) for mask in masks for contents in product(*fates)]
        every, none = (0,) * len(fates), (1,) * len(fates)
        first = dict.fromkeys(
            Choice(mask, contents) for mask in (self._every, self._certain) for contents in (every, none)
        )
        revealing = dict.fromkeys(Choice(mask, contents) for mask in masks for contents in (every, none))
        for number, of_file in enumerate(fates):
            for fate in of_file:
                for others in (every, none):
                    contents = (*others[:number], fate, *others[number + 1 :])
                    revealing[Choice(self._every, contents)] = None
        drawn = {
            Choice(random.choice(masks), tuple(random.choice(of_file) for of_file in fates)): None
            for _ in range(max(limit // 4, limit - len(revealing)))
        }
        rest = [choice for choice in revealing if choice not in first]
        if limit < len(first):  # over many moments every kind gets its turn
            return random.sample([*first, *rest], limit)
        room = limit - len(first)
        if len(rest) + len(drawn) > room:
            rest = random.sample(rest, min(len(rest), room - min(room // 4, len(drawn))))
        return list(dict.fromkeys((*first, *rest, *drawn)))[:limit]

    def _masks(self, random: Random) -> list[int]:
        """Return sets of directory operations that may survive together, starting with all of them."""
        if self._profile is Profile.JOURNALED:
            certain = self._certain.bit_length()
            return [(1 << length) - 1 for length in range(len(self._changes), certain - 1, -1)]
        free = [number for number in range(len(self._changes)) if not self._certain >> number & 1]
        if len(free) <= _FEW:
            subsets = [
                sum(1 << number for number, survives in zip(free, bits, strict=True) if survives)
                for bits in product((True, False), repeat=len(free))
            ]
            return [self._certain | subset for subset in subsets]
        masks = [self._every, self._certain]
        masks += [self._every & ~(1 << number) for number in free]
        masks += [self._certain | 1 << number for number in free]
        for _ in range(_DRAWN_SUBSETS):
            likelihood = random.choice((0.2, 0.5, 0.8))
            masks.append(self._certain | sum(1 << number for number in free if random.random() < likelihood))
        return list(dict.fromkeys(masks))

    def picture(self, choice: Choice) -> Picture:
        """Return the content of the disk after this choice."""
        settled, open_files = self._tree(choice.names)
        if not open_files:
            return tuple(settled)
        entries = settled.copy()
        for path, number in open_files:
            file, fate = self._files[number], choice.contents[number]
            content = file.contents.get(fate)
            if content is None:
                content = file.contents[fate] = self._pictures.content(file.body(file.fates[fate]))
            entries.append(self._pictures.entry(path, content, file.inode.modified_ms))
        entries.sort()
        return tuple(entries)

    def _tree(self, names: int) -> tuple[list[int], list[tuple[str, int]]]:
        """Return the settled entries under these names, ascending, and the paths and numbers of unsynced
        files."""
        if (tree := self._trees.get(names)) is not None:
            return tree
        tables = surviving_tables(
            self._disk._root,
            (change for number, change in enumerate(self._changes) if names >> number & 1),
        )
        settled: list[int] = []
        open_files: list[tuple[str, int]] = []
        pictures = self._pictures

        def walk(directory: Directory, above: str) -> None:
            for name, node in tables[directory].items():
                path = f"{above}/{name}"
                if isinstance(node, Directory):
                    settled.append(pictures.entry(path, -1, node.modified_ms))
                    walk(node, path)
                elif (number := self._numbers.get(node)) is not None:
                    open_files.append((path, number))
                else:
                    settled.append(pictures.entry(path, pictures.content(node.durable()), node.modified_ms))

        walk(self._disk._root, "")
        settled.sort()
        tree = self._trees[names] = (settled, open_files)
        return tree

    def lost(self, choice: Choice) -> int:
        """Return how many operations do not survive in full; those on files without a name do not count."""
        _, open_files = self._tree(choice.names)
        return (self._every & ~choice.names).bit_count() + sum(
            file.lost(file.fates[choice.contents[number]])
            for _, number in open_files
            for file in (self._files[number],)
        )

    def describe(self, choice: Choice) -> list[str]:
        """Return a line for each lost directory operation and each incomplete file."""
        paths = {self._disk._root: "", **_paths(self._disk._root, "")}
        lines = [
            f"lost: {_describe(change, paths)}"
            for number, change in enumerate(self._changes)
            if not choice.names >> number & 1
        ]
        _, open_files = self._tree(choice.names)
        for path, number in sorted(open_files):
            file = self._files[number]
            fate = file.fates[choice.contents[number]]
            lines.append(f"{path}: {fate.text(len(file.journal))}")
        return lines


def _mask(bits: Iterator[bool]) -> int:
    return sum(1 << number for number, bit in enumerate(bits) if bit)


def _inodes(disk: MemoryDisk) -> dict[Inode, None]:
    """Return every file that an image may hold, in an order that only the disk's history decides."""
    found: dict[Inode, None] = {}
    seen: set[Directory] = set()

    def visit(node: Node | None) -> None:
        if isinstance(node, Inode):
            found[node] = None
        elif node is not None and node not in seen:
            seen.add(node)
            for table in (node.entries, node.durable):
                for name in sorted(table):
                    visit(table[name])

    visit(disk._root)
    for change in disk._changes:
        for assignment in change.assignments:
            visit(assignment.node)
    return found


def _paths(directory: Directory, above: str) -> dict[Directory, str]:
    found: dict[Directory, str] = {}
    for table in (directory.durable, directory.entries):
        for name, node in table.items():
            if isinstance(node, Directory):
                found[node] = f"{above}/{name}"
                found |= _paths(node, f"{above}/{name}")
    return found


def _describe(change: Change, paths: dict[Directory, str]) -> str:
    places = [f"{paths.get(directory, '…')}/{name}" for directory, name, _ in change.assignments]
    if len(places) == 2:
        return f"rename {places[0]} to {places[1]}"
    return f"{'remove' if change.assignments[0].node is None else 'create'} {places[0]}"
