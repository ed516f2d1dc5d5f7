"""One API a file. A handler takes the call, the request's body, and the services that it may use.

It returns the answer; or None, and then `Services.ask` (or whatever it began) brings the answer later. What
it raises is a bug: the client loses its connection, the log tells which request it was. A new API is a
file with a `handle` and a line in `HANDLERS`; ApiVersions tells of it by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from broker.call import Call
from broker.handlers import api_versions, create_topics, fetch, list_offsets, metadata, produce
from broker.services import Services
from broker.wire.declarations import Struct

Handler: TypeAlias = Callable[[Call, Any, Services], Struct | None]

HANDLERS: Final[Mapping[int, Handler]] = {
    0: produce.handle,
    1: fetch.handle,
    2: list_offsets.handle,
    3: metadata.handle,
    18: api_versions.handle,
    19: create_topics.handle,
}
"""By API key."""
