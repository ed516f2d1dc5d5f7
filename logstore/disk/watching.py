"""Notify waiters when another process changes a directory: one thread for all waiters of this process.

    wait for a change ── add(directory, file, wake) ──► inotify (Linux): the kernel tells within microseconds
                                                    └─► else: a look at both every 50 ms

A watch ends with the first change, in the kernel too: a busy directory costs nothing while nobody waits for
it. The kernel does not tell of changes that another host makes in a network file system. So everything is
looked at once a second as well, and a directory whose change no event reported is looked at every 50 ms from
then on. The same holds without inotify (macOS, Windows) and where its limits are reached.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from logstore.disk.clocks import steady_s

LOOK_S: Final = 1.0
"""How often a directory is looked at of which the kernel tells."""
SHORT_LOOK_S: Final = 0.05
"""How often a directory is looked at otherwise."""
_IDLE_LOOKS: Final = 10
"""After so many looks at nothing the thread ends."""
_NO_EVENTS: Final = -1


class Look(NamedTuple):
    """The result of a look: times of the directory and the file, and the file's size; -1 if missing."""

    changed_ns: int
    file: str
    size: int


class Watch:
    """One wait for a change in `directory`; `descriptor` is the kernel's number for it."""

    __slots__ = ("before", "descriptor", "directory", "file", "wake")

    def __init__(
        self, directory: str, file: Callable[[], str], wake: Callable[[], None], descriptor: int, before: Look
    ) -> None:
        self.directory, self.file, self.wake = directory, file, wake
        self.descriptor, self.before = descriptor, before


class Watcher:
    """Watches directories for this process. Every method may be called from any thread."""

    def __init__(self, events: Any | None) -> None:
        """Watch with `events`, an `inotify_simple.INotify`; None if there is none."""
        self._events = events
        self._mutex = threading.RLock()
        self._watches: set[Watch] = set()
        self._silent: set[str] = set()
        self._thread: threading.Thread | None = None
        self._never = threading.Event()

    def add(self, directory: str, file: Callable[[], str], wake: Callable[[], None]) -> Watch:
        """Call `wake` once, from the watcher's thread, when `directory` changes from now on.

        `file` names the one in it that may change while no entry of the directory does.
        """
        with self._mutex:
            watch = Watch(directory, file, wake, self._arm(directory), look(directory, file))
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="logstore-watcher", daemon=True)
                self._thread.start()
        return watch

    def remove(self, watch: Watch) -> None:
        """End a watch; harmless if it has ended."""
        with self._mutex:
            self._watches.discard(watch)

    def _arm(self, directory: str) -> int:
        if self._events is not None and directory not in self._silent:
            from inotify_simple import flags

            what = flags.MODIFY | flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO
            itself = flags.DELETE_SELF | flags.MOVE_SELF | flags.ONESHOT | flags.ONLYDIR
            # No such directory, or the limit of watches: looks have to do.
            with suppress(OSError):
                return int(self._events.add_watch(directory, what | itself))
        return _NO_EVENTS

    def _run(self) -> None:
        looked_s, idle_looks = steady_s(), 0
        while True:
            heard = self._wait()
            now_s = steady_s()
            with self._mutex:
                told = {watch for watch in self._watches if watch.descriptor in heard}
                is_time = now_s - looked_s >= LOOK_S
                seen = {
                    watch
                    for watch in self._watches - told
                    if (is_time or watch.descriptor == _NO_EVENTS)
                    and look(watch.directory, watch.file) != watch.before
                }
                # The kernel may be telling just now; if not, it never will.
                heard = self._heard(0) if seen else ()
                self._silent.update(watch.directory for watch in seen if watch.descriptor not in heard)
                told |= seen | {watch for watch in self._watches if watch.descriptor in heard}
                self._watches -= told
                if is_time:
                    looked_s = now_s
                    idle_looks = 0 if self._watches or told else idle_looks + 1
                if idle_looks > _IDLE_LOOKS:
                    self._thread = None
                    return
            for watch in told:
                watch.wake()

    def _wait(self) -> tuple[int, ...]:
        with self._mutex:
            has_silent = any(watch.descriptor == _NO_EVENTS for watch in self._watches)
        wait_s = SHORT_LOOK_S if has_silent or self._silent or self._events is None else LOOK_S
        if self._events is not None:
            return self._heard(int(wait_s * 1000))
        self._never.wait(wait_s)
        return ()

    def _heard(self, wait_ms: int) -> tuple[int, ...]:
        """Return the descriptors of which the kernel tells; after an overflow, all."""
        if self._events is None:
            return ()
        events = [event.wd for event in self._events.read(wait_ms)]
        if _NO_EVENTS in events:
            with self._mutex:
                return tuple(watch.descriptor for watch in self._watches)
        return tuple(events)


def look(directory: str, file: Callable[[], str]) -> Look:
    """Look at a directory and a file in it."""
    name = file()
    try:
        return Look(os.stat(directory).st_mtime_ns, name, os.stat(f"{directory}/{name}").st_size)
    except OSError:
        return Look(-1, name, -1)


class _OfProcess:
    """The watcher of this process, made when it is first needed."""

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Forget the watcher: in a forked child, the parent's thread is not there."""
        self._making = threading.Lock()
        self._watcher: Watcher | None = None

    def get(self) -> Watcher:
        with self._making:
            if self._watcher is None:
                self._watcher = Watcher(_inotify())
            return self._watcher


_of_process = _OfProcess()


def watcher() -> Watcher:
    """Return the watcher of this process."""
    return _of_process.get()


def _inotify() -> Any | None:
    try:
        from inotify_simple import INotify

        return INotify(nonblocking=True)
    except (ImportError, OSError):
        return None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_of_process.start_anew)
