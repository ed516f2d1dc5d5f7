"""What may a power cut leave? An independent answer, to hold the disks' images against.

`Witness` makes every call on a disk and writes down, in the simplest way there is, whole copies of what
each file and each name has been since its last sync. Slow and obvious, on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from logstore.disk.files import Disk, File, read_small_file


@dataclass
class _WitnessedFile:
    """`states[0]` is the content at the last sync, then one state a write or cut."""

    states: list[bytes] = field(default_factory=lambda: [b""])

    def may_be(self, content: bytes, *, garbage: bool) -> bool:
        sizes = [len(state) for state in self.states]
        if not min(sizes) <= len(content) <= max(sizes):
            return False
        for position, byte in enumerate(content):
            seen = {state[position] for state in self.states if position < len(state)}
            if byte in seen:
                continue
            # The length came without the bytes: zeros, or what lay there on the device before.
            if any(size <= position for size in sizes) and (byte == 0 or garbage):
                continue
            return False
        return True


@dataclass
class Witness:
    """Runs random scripts on `disk`, in the directories `d0` and `d1` below `root`, which are durable."""

    disk: Disk
    root: str
    random: Random
    # Per directory and name: what the name stood for, since the directory's last sync.
    versions: dict[str, dict[str, list[_WitnessedFile | None]]] = field(default_factory=dict)
    handles: list[tuple[_WitnessedFile, File]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("d0", "d1"):
            self.disk.make_dir(f"{self.root}/{name}")
            self.versions[name] = {file: [None] for file in "abc"}
        parent = self.root
        while parent not in ("", "."):
            self.disk.sync_dir(parent)
            parent = parent.rpartition("/")[0]
        self.disk.sync_dir("/")

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def close(self) -> None:
        for _, file in self.handles:
            file.close()
        self.handles.clear()

    def wrongs(self, after: Disk, *, garbage: bool) -> list[str]:
        """What in the disk that came back cannot have come from this script."""
        wrongs = []
        for directory, names in self.versions.items():
            for name, versions in names.items():
                path = f"{self.root}/{directory}/{name}"
                content = read_small_file(after, path)
                if content is None:
                    legal = None in versions
                else:
                    legal = any(file and file.may_be(content, garbage=garbage) for file in versions)
                if not legal:
                    wrongs.append(f"{path}: {content!r}")
        return wrongs

    def durable(self) -> dict[str, bytes]:
        """Path and content of what is certain to survive."""
        return {
            f"{self.root}/{directory}/{name}": versions[0].states[0]
            for directory, names in self.versions.items()
            for name, versions in names.items()
            if versions[0] is not None
        }

    def _step(self) -> None:
        random, disk = self.random, self.disk
        directory = random.choice(("d0", "d1"))
        names = self.versions[directory]
        name, other = random.choice("abc"), random.choice("abc")
        path = f"{self.root}/{directory}/{name}"
        present = names[name][-1]
        kind = random.randrange(12)
        if kind <= 5 and self.handles:
            self._change(*random.choice(self.handles))
        elif kind == 6 and self.handles:
            file, handle = random.choice(self.handles)
            handle.sync(data_only=random.random() < 0.5)
            file.states = file.states[-1:]
        elif kind == 7:
            disk.sync_dir(f"{self.root}/{directory}")
            for versions in names.values():
                del versions[:-1]
        elif kind == 8 and present is not None:
            disk.remove(path)
            names[name].append(None)
        elif kind == 9 and present is not None and other != name:
            disk.rename(path, f"{self.root}/{directory}/{other}")
            names[other].append(present)
            names[name].append(None)
        elif kind >= 10:
            handle = disk.open(path, create=True, write=True)
            if present is None:
                present = _WitnessedFile()
                names[name].append(present)
            self.handles.append((present, handle))

    def _change(self, file: _WitnessedFile, handle: File) -> None:
        random, content = self.random, file.states[-1]
        kind = random.randrange(8)
        if kind == 0:
            size = random.randint(0, len(content) + 20)
            handle.truncate(size)
            file.states.append(content[:size].ljust(size, b"\0"))
            return
        # Mostly appends, as a log makes them; non-zero bytes, to be told from holes.
        at = len(content) if kind < 5 else random.randint(0, len(content) + 10)
        data = bytes(random.randrange(1, 256) for _ in range(random.choice((1, 3, 700))))
        handle.pwrite(data, at)
        padded = content.ljust(at, b"\0")
        file.states.append(padded[:at] + data + padded[at + len(data) :])
