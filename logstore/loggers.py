"""Loggers whose handlers and filters cannot break the work that writes to them (decision 132).

A handler of the application that raises would end the thread of a broker, or a truncation halfway. Python's
own handlers do not raise: they print the error to stderr, unless `logging.raiseExceptions` is False. That is
done here for all handlers, filters and record factories.
"""

from __future__ import annotations

import logging
import threading
from typing import Any


class _Guarded(logging.LoggerAdapter[logging.Logger]):
    """The logger, without the exceptions of its handlers."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """As `Logger.log`. Interrupts and `SystemExit` are raised in the main thread alone."""
        try:
            # The caller is one frame above this one.
            super().log(level, msg, *args, stacklevel=2, **kwargs)
        except BaseException as error:
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise
            report(logging.LogRecord(self.logger.name, level, "", 0, msg, args, None))


def report(record: logging.LogRecord) -> None:
    """Print the exception in flight and the message that it kept from its readers."""
    logging.Handler().handleError(record)


def logger_of(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the logger of this name, whose calls do not raise what a handler or a filter raises."""
    return _Guarded(logging.getLogger(name))  # noqa: TID251 - the one place
