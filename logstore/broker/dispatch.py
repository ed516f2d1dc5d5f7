"""From a frame to its handler.

    frame ─▶ header ─▶ the table of APIs ─▶ body ─▶ handler ─▶ answer, at once or later

What cannot be read, an unknown API, and a version that is not served end the connection: there is no error
frame. One exception: whoever asks for ApiVersions in a version that is not known here is told the known ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore.broker.call import Call
from logstore.broker.connection import Connection
from logstore.broker.errors import MalformedMessage
from logstore.broker.handlers import HANDLERS, Handler
from logstore.broker.handlers.api_versions import versions_served
from logstore.broker.services import Services, finish
from logstore.broker.wire.apis import API_VERSIONS, APIS
from logstore.broker.wire.codec import decoder
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import RequestHeader, decode_request_header
from logstore.disk.errors import ErrorCode


class Dispatch:
    """Serves frames: what a `Server` calls with each."""

    def __init__(self, services: Services, handlers: Mapping[int, Handler] = HANDLERS) -> None:
        """`handlers` are by API key; what has none is not served."""
        self._services, self._handlers = services, handlers

    def __call__(self, connection: Connection, frame: memoryview) -> None:
        try:
            header = decode_request_header(frame)
            api = header.api
            if api is None or header.key not in self._handlers:
                self._refuse(connection, header)
                return
            body, _ = decoder(api.request, header.version)(frame[header.size :])
        except MalformedMessage as error:
            connection.refuse(str(error))
            return
        self.serve(Call(connection, api, header.version, header.correlation_id, header.client_id), body)

    def serve(self, call: Call, body: Struct) -> None:
        """Have the handler answer a request that has one."""
        call.on_answer = self._services.traffic.timing(call.api.name)
        finish(call, self._handlers[call.api.key], call, body, self._services)

    def _refuse(self, connection: Connection, header: RequestHeader) -> None:
        if header.key != API_VERSIONS:
            connection.refuse(f"API {header.key} version {header.version} is not served")
            return
        call = Call(connection, APIS[API_VERSIONS], 0, header.correlation_id, header.client_id)
        call.answer(versions_served(self._services, ErrorCode.UNSUPPORTED_VERSION))
