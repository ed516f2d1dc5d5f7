"""Logging as JSON, one object a line."""

from __future__ import annotations

import json
import logging


class JsonLines(logging.Formatter):
    """Formats time, level, logger, message, and the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_as_json(level: int = logging.INFO) -> None:
    """Log everything of this process to stderr as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler])
