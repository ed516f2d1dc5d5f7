"""The served APIs: each row of `versions.py` with its types; and the answer to ApiVersions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from logstore.broker.wire import interbroker, types
from logstore.broker.wire.declarations import Struct, parse_versions
from logstore.broker.wire.versions import TABLE

_AMONG_BROKERS: Final = {1: 16}
"""Fetch 17 names the log dirs of KRaft's replicas, which ours do not tell each other."""


@dataclass(frozen=True, slots=True)
class Api:
    """One kind of request. `advertised` is empty for messages between brokers."""

    key: int
    name: str
    advertised: range
    served: range
    flexible: range
    request: type[Struct]
    response: type[Struct]

    @property
    def latest(self) -> int:
        """The version for requests between brokers: the newest served, or an older one.

        Older releases of this library serve it too, so a cluster can be upgraded broker by broker."""
        return _AMONG_BROKERS.get(self.key, self.served[-1])

    def has_flexible_response_header(self, version: int) -> bool:
        """Return whether responses have tags; those to ApiVersions never do, as clients do not know us
        yet."""
        return version in self.flexible and self.key != API_VERSIONS


API_VERSIONS: Final = 18


def _apis() -> dict[int, Api]:
    found = {}
    for row in TABLE:
        declared = interbroker if hasattr(interbroker, f"{row.name}Request") else types
        request: type[Struct] = getattr(declared, f"{row.name}Request")
        response: type[Struct] = getattr(declared, f"{row.name}Response")
        served = parse_versions(row.served)
        assert request.VERSIONS == response.VERSIONS == served, f"{row.name}: types.py is out of date"
        assert request.KEY == response.KEY == row.key, f"{row.name}: key"
        advertised = parse_versions(row.advertised)
        found[row.key] = Api(row.key, row.name, advertised, served, request.FLEXIBLE, request, response)
    return found


APIS: Final[Mapping[int, Api]] = _apis()
"""By key."""

API_OF: Final[Mapping[type[Struct], Api]] = {
    kind: api for api in APIS.values() for kind in (api.request, api.response)
}
"""By the type of a request or response."""


def api_versions(error_code: int = 0, *, hidden: Collection[int] = ()) -> types.ApiVersionsResponse:
    """Return the answer to ApiVersions, without `hidden` APIs.

    With UNSUPPORTED_VERSION (35) it is sent as version 0.
    """
    return types.ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            types.ApiVersionsResponseApiVersion(
                api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[-1]
            )
            for api in APIS.values()
            if api.advertised and api.key not in hidden
        ],
    )
