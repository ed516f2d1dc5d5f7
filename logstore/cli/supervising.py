"""The supervisor of a local cluster: restarts members that have died, each after a growing pause.

It ends with SIGTERM, which `logstore cluster stop` sends first, with SIGINT and SIGHUP, or when another one
has taken its place.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from logstore.cli.cluster_file import ClusterFailed, existing
from logstore.cli.local_cluster import is_running, last_line, relaunch
from logstore.loggers import logger_of

LOOK_EACH_S: Final = 0.5
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
STEADY_AFTER_S: Final = 60.0
"""A member that ran so long gets the first pause again."""

_log = logger_of("logstore.supervisor")


@dataclass(slots=True)
class Pauses:
    """Decides when a member that has died is restarted. Pure: times are arguments, in seconds."""

    _pause_s: dict[str, float] = field(default_factory=dict)
    _died_s: dict[str, float] = field(default_factory=dict)
    _started_s: dict[str, float] = field(default_factory=dict)

    def has_died(self, name: str, now_s: float) -> bool:
        """Note that the member is not running; return whether that is new."""
        if name in self._died_s:
            return False
        self._died_s[name] = now_s
        ran_s = now_s - self._started_s.get(name, float("-inf"))
        doubled_s = min(2 * self._pause_s.get(name, 0.0), LONGEST_PAUSE_S)
        self._pause_s[name] = FIRST_PAUSE_S if ran_s >= STEADY_AFTER_S else max(doubled_s, FIRST_PAUSE_S)
        return True

    def pause_s(self, name: str) -> float:
        """Return the pause between the last death of the member and its start."""
        return self._pause_s[name]

    def is_due(self, name: str, now_s: float) -> bool:
        """Return whether the member, which has died, is to be started now."""
        return now_s - self._died_s[name] >= self._pause_s[name]

    def was_started(self, name: str, now_s: float) -> None:
        """Note that the member was started."""
        del self._died_s[name]
        self._started_s[name] = now_s


def look(directory: Path, pauses: Pauses, now_s: float) -> None:
    """Restart the members that have died and are due. Raises `ClusterFailed` if the cluster is gone."""
    for member in existing(directory).members:
        if member.stays_down or is_running(directory, member):
            continue
        if pauses.has_died(member.name, now_s):
            _log.error(
                "%s (process %d) has died; starting it again in %g s. Its last line: %s",
                member.name,
                member.pid,
                pauses.pause_s(member.name),
                last_line(directory, member),
            )
        if pauses.is_due(member.name, now_s):
            relaunch(directory, [member.name], is_asked=False)
            pauses.was_started(member.name, now_s)


def supervise(directory: Path) -> int:
    """Look after the cluster in `directory` until SIGTERM, or until it has another supervisor."""
    told_to_stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # `nohup`
            signal.signal(number, lambda *_: told_to_stop.set())
    pauses = Pauses()
    while not told_to_stop.wait(LOOK_EACH_S):
        try:
            supervisor = existing(directory).supervisor
            if supervisor is not None and supervisor.pid != os.getpid():
                _log.info("process %d supervises this cluster now", supervisor.pid)
                return 0
            look(directory, pauses, time.monotonic())
        except ClusterFailed as error:
            _log.error("%s; the supervisor ends", error)
            return 1
        except OSError as error:
            _log.error("cannot start a member: %s", error)
    return 0
