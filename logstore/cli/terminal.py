"""Output that the verbs share: one-line errors, JSON lines, bytes as text."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from typing import Any, BinaryIO, TextIO


class Encoding(StrEnum):
    """How keys, values and header values are shown as text."""

    UTF8 = "utf8"
    HEX = "hex"
    BASE64 = "base64"


def print_error(text: str) -> None:
    """Print an error as one line on stderr."""
    print("logstore: " + " ".join(text.split("\n")), file=sys.stderr, flush=True)


def open_stream(name: str) -> BinaryIO:
    """Return the bytes of `stdin` or `stdout`. Raises `OSError` if the shell closed it (`<&-`, `>&-`)."""
    stream: TextIO | None = getattr(sys, name)
    if stream is None:
        raise OSError(f"{name} is closed")
    return stream.buffer


class _Piped(io.FileIO):
    """Output whose reader may exit; the next write then ends the process, as in any filter."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            if signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN:  # a server, or a job, completes its work
                raise
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGPIPE)
            os._exit(128 + signal.SIGPIPE)


def end_with_readers() -> None:
    """End the process quietly when the reader of its output has exited, and not when a connection breaks.

    The default action of SIGPIPE ends it in both cases.
    """
    if not hasattr(signal, "SIGPIPE"):  # pragma: no cover - Windows
        return
    signal.signal(signal.SIGPIPE, lambda *_: None)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            raw = _Piped(stream.fileno(), "wb", closefd=False)
            text = io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, text)


@contextmanager
def told(done: str) -> Iterator[None]:
    """Print inside of it what a command has done. Raises `OSError` with the text `done` if stdout fails."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with suppress(OSError), open(os.devnull, "wb") as rest:  # Python would fail with it at its exit
            os.dup2(rest.fileno(), sys.stdout.fileno())
        raise OSError(f"stdout: {error.strerror or error}; {done}") from error


def print_json(fact: object) -> None:
    """Print an object on one line of stdout, in ASCII, so that no terminal setting can break it."""
    import json

    print(json.dumps(fact, separators=(", ", ": ")))


def byte_progress(stack: ExitStack, total: int) -> Callable[[int], None]:
    """Show a progress bar on stderr until `stack` closes, if that is a terminal.

    Returns a function that takes the number of bytes done since its last call.
    """
    if not sys.stderr.isatty():
        return lambda _: None
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    bar = stack.enter_context(
        Progress(
            BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True,
        )
    )  # fmt: skip
    task = bar.add_task("", total=total)
    return lambda size: bar.advance(task, size)


def as_text(data: bytes | None, encoding: Encoding) -> str | None:
    """Return `data` in this encoding; None stays None.

    UTF8 is for people: a byte that is not UTF-8 becomes `\\xNN`, as the same text would. HEX and BASE64 keep
    every byte.
    """
    if data is None:
        return None
    if encoding is Encoding.HEX:
        return data.hex()
    if encoding is Encoding.BASE64:
        import base64

        return base64.b64encode(data).decode()
    return data.decode("utf-8", "backslashreplace")


def printable(text: str | None) -> str:
    """Escape control characters, so that a record cannot move the terminal's cursor."""
    if text is None:
        return "null"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
