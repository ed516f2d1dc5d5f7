"""The audit log: a line of JSON for each login, refusal and change, in the logger `logstore.audit`.

Names come from clients: escaped as JSON they cannot forge a line. Secrets and records are never in it.
"""

from __future__ import annotations

import json
import logging

_log = logging.getLogger("logstore.audit")


def audit(event: str, **facts: object) -> None:
    """Write one line."""
    _log.info(json.dumps({"event": event, **facts}, ensure_ascii=True))
