"""Draw the remains of a `MemoryDisk` after a power cut: the content of a file, the names in the directories.

A file keeps its content up to its last `sync`, a directory its names up to its last `sync_dir`. Any part of
the later operations may survive. Of a file: whole writes, or parts of them down to a byte or a sector,
writes without the truncation before them, a length without its bytes. Of the directories, by profile:

    journaled   a prefix of the operations, in their order (ext4, XFS); a file that was renamed over another
                may still be empty
    posix       any of them: each name shows one of the files that it had since its directory's last sync;
                a length without its bytes may hold garbage

A rename is one operation in both: it is never half done, and never gives a file two names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from random import Random

from logstore.disk.memory_nodes import Body, Change, Directory, Inode, Node, Step, redo

_SECTORS = (512, 4096)


class Profile(Enum):
    """How strictly the file system keeps the order of directory operations."""

    JOURNALED = "journaled"
    POSIX = "posix"


def leftover(inode: Inode, random: Random, profile: Profile) -> Body:
    """Draw the content of the file after a power cut."""
    body, journal = inode.durable(), inode.journal
    if not journal:
        return body
    fate = random.random()
    if fate < 0.2:
        pass
    elif fate < 0.4:
        for step in journal:
            redo(body, step)
    elif fate < 0.7:
        whole = random.randrange(len(journal))
        for step in journal[:whole]:
            redo(body, step)
        _redo_torn(body, journal[whole], random)
    else:
        likelihood, sector = random.choice((0.1, 0.5, 0.9)), random.choice(_SECTORS)
        for step in journal:
            for piece in pieces(step, sector):
                if random.random() < likelihood:
                    redo(body, piece)
    if body.size < inode.body.size and random.random() < 0.4:
        size = inode.body.size if random.random() < 0.5 else random.randint(body.size, inode.body.size)
        if profile is Profile.POSIX and random.random() < 0.25:
            body.write(random.randbytes(size - body.size), body.size)
        else:
            body.resize(size)
    return body


def _redo_torn(body: Body, step: Step, random: Random) -> None:
    if not step.data:
        return
    cut = random.randint(0, len(step.data))
    if random.random() < 0.5:
        sector = random.choice(_SECTORS)
        cut = max(0, (step.at + cut) // sector * sector - step.at)
    if random.random() < 0.8:
        body.write(step.data[:cut], step.at)
    elif cut < len(step.data):  # the later part reached the disk first, with a hole before it
        body.write(step.data[cut:], step.at + cut)


def pieces(step: Step, sector: int) -> Iterator[Step]:
    if step.data is None:
        yield step
        return
    start, end = step.at, step.at + len(step.data)
    while start < end:
        stop = min(end, (start // sector + 1) * sector)
        yield Step(start, step.data[start - step.at : stop - step.at], b"", 0)
        start = stop


def surviving_changes(changes: list[Change], random: Random, profile: Profile) -> list[Change]:
    """Draw the directory operations that survive a power cut."""
    if profile is Profile.JOURNALED:
        certain = sum(change.ordered for change in changes)
        return changes[: random.randint(certain, len(changes))]
    likelihood = random.choice((0.0, 0.5, 0.9, 1.0))
    return [change for change in changes if change.synced or random.random() < likelihood]


def surviving_tables(root: Directory, changes: Iterable[Change]) -> dict[Directory, dict[str, Node]]:
    """Return the entries of each directory if only these of the unsettled changes survive."""
    tables: dict[Directory, dict[str, Node]] = {}
    places: dict[Node, tuple[dict[str, Node], str]] = {}

    def table_of(directory: Directory) -> dict[str, Node]:
        if directory not in tables:
            table = tables[directory] = dict(directory.durable)
            for name, node in table.items():
                places[node] = (table, name)
                if isinstance(node, Directory):
                    table_of(node)
        return tables[directory]

    table_of(root)
    for change in changes:
        for directory, name, node in change.assignments:
            table = table_of(directory)
            before = table.pop(name, None)
            place = places.get(before) if before is not None else None
            if before is not None and place is not None and place[0] is table and place[1] == name:
                del places[before]
            if node is not None:
                if len(change.assignments) > 1:
                    # A rename: it may still have an old name whose removal did not survive.
                    old_table, old_name = places.pop(node, (table, name))
                    old_table.pop(old_name, None)
                table[name] = node
                places.setdefault(node, (table, name))
                if isinstance(node, Directory):
                    table_of(node)
    return tables
