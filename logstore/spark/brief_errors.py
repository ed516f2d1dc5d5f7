"""Make the library's errors readable through Spark, which passes on only text, between two traces.

In a worker `briefly` cuts the traceback of an `EngineError` down to one frame: its message says what happened
and what to do, and the calls inside this package do not help its user. In the driver `reason` finds the
message again. Errors of other kinds keep their traceback, since they are defects.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType, TracebackType
from typing import Any, Final, TypeVar

from logstore.disk.errors import EngineError

Class = TypeVar("Class", bound=type)

_OF_FILES: Final = re.compile(r"\bjava\.(?:nio\.file|io)\.(\w+Exception: .+)$", re.MULTILINE)
_JAVAS: Final = r"(?:[\w.$]+: (?=\[)|(?:[a-z]\w*\.)*)(.+)$"
"""Java's name of an error is left out before Spark's, which is in brackets, and its package always."""
_CAUSES: Final = re.compile(r"^Caused by: " + _JAVAS, re.MULTILINE)
_OF_PY4J: Final = re.compile(r"^An error occurred while calling .*\n: " + _JAVAS, re.MULTILINE)
_REPEATERS: Final = ("py4j.clientserver", "SQLQueryContextLogger")
_RAISED: Final = re.compile(r"^logstore\.[\w.]+: (.+)$", re.MULTILINE)


def briefly(source: Class) -> Class:
    """Decorate a class that Spark calls: its public methods raise an `EngineError` with one frame."""
    for name, method in list(vars(source).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(source, name, _brief(method))
    return source


def _brief(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(method):

        @wraps(method)
        def yields(*given: Any, **named: Any) -> Iterator[Any]:
            try:
                yield from method(*given, **named)
            except EngineError as error:
                raise error.with_traceback(None) from None

        return yields

    @wraps(method)
    def returns(*given: Any, **named: Any) -> Any:
        try:
            return method(*given, **named)
        except EngineError as error:
            raise error.with_traceback(None) from None

    return returns


def reason(error: BaseException) -> str | None:
    """Return the message of this library's error that made Spark raise `error`; None if there is none."""
    found = _RAISED.findall(str(error))
    return found[-1] if found else None


def reason_of_files(error: BaseException) -> str | None:
    """Return the error of a file in Java that made Spark raise `error`; None if there is none."""
    found = _OF_FILES.findall(str(error))
    return f"Spark failed at a file: {found[-1]}" if found else None


def reason_of_spark(error: BaseException) -> str:
    """Return what Spark says of a mistake in SQL, a schema or a setting, without plan and trace.

    Of several causes it is the innermost.
    """
    text = str(error).strip()
    found = _CAUSES.findall(text) or _OF_PY4J.findall(text) or [text.split("\n")[0]]
    return str(found[-1]).rstrip(";:. ")


def is_sparks(error: BaseException) -> bool:
    """Return whether Spark raised `error`: PySpark gives some of Java's errors a class, py4j all others."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def end_with_reason() -> None:
    """Print the reason once more when an error of Spark ends the program, below what Spark has to add."""
    shown = sys.excepthook
    if getattr(shown, "ends_with_reason", False):
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown(kind, error, trace)
        if is_sparks(error) and (text := reason(error)) is not None:
            sys.stderr.write(f"logstore: {text}\n")

    show.ends_with_reason = True  # type: ignore[attr-defined]  # a mark on a function
    sys.excepthook = show


@contextmanager
def quiet_loggers() -> Iterator[None]:
    """Keep py4j and PySpark from printing the traceback of an error that is raised again here."""
    loggers = [logging.getLogger(name) for name in _REPEATERS]  # noqa: TID251 - of other packages
    before = [each.disabled for each in loggers]
    for each in loggers:
        each.disabled = True
    try:
        yield
    finally:
        for each, was in zip(loggers, before, strict=True):
            each.disabled = was
