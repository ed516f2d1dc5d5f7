"""Logging as JSON, one object a line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from typing import Final

from logstore.broker.acceptor import SeldomEach
from logstore.disk.errors import explained

MOST_BYTES: Final = 16 << 20


def utc_text(epoch_s: float) -> str:
    """Return a time in ISO 8601 with milliseconds: 2026-11-23T14:30:00.123Z."""
    text = datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


class JsonLines(logging.Formatter):
    """Formats the time (UTC), level, logger, message, and the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": utc_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class QuietKazoo(logging.Filter):
    """Drops what kazoo says of its ordinary work, and of each kind of warning all but one in ten seconds.

    A store that is away for a minute would fill the log otherwise; the node reports the end of a session.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seldom = SeldomEach()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        if not record.name.startswith("kazoo"):
            return True
        return record.levelno >= logging.WARNING and self._seldom(str(record.msg), record.created) > 0


def log_as_json(path: str | None = None) -> None:
    """Log everything of this process as JSON: to stderr, or to the file at `path`.

    A file of `MOST_BYTES` is renamed to `….1`, in place of an earlier one. Raises `OSError`.
    """
    handler: logging.Handler = logging.StreamHandler()
    if path is not None:
        try:
            handler = RotatingFileHandler(path, maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8")
        except OSError as error:
            raise explained(error, f"cannot write to {path} (--log-file)") from error
    handler.setFormatter(JsonLines())
    handler.addFilter(QuietKazoo())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
