"""SaslHandshake and SaslAuthenticate: no mechanism is enabled, everybody may come in as they are."""

from __future__ import annotations

from logstore.broker.call import Call
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode


def handshake(call: Call, body: t.SaslHandshakeRequest, services: Services) -> t.SaslHandshakeResponse:
    """Whatever is asked for is not among the mechanisms that there are, which are none."""
    return t.SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM)


def authenticate(
    call: Call, body: t.SaslAuthenticateRequest, services: Services
) -> t.SaslAuthenticateResponse:
    """A handshake that succeeded would have to come first."""
    return t.SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="no SASL mechanism is enabled here; connect without one",
    )
