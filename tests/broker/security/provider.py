"""An identity provider for tests: keys, tokens, a JWKS file, and an HTTP port for keys and tokens."""

from __future__ import annotations

import base64
import functools
import json
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, Key, KeySet, OctKey, OKPKey, RSAKey

ISSUER, AUDIENCE = "https://id.example", "kafka"


@functools.cache
def key(kid: str = "one", kind: str = "RSA") -> Key:
    """A private key; the same for the same name."""
    made: Key
    match kind:
        case "RSA":
            made = RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})
        case "RSA-1024":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SecurityWarning)
                made = RSAKey.generate_key(1024, {"kid": kid})
        case "oct":
            made = OctKey.generate_key(256, {"kid": kid})
        case "Ed25519":
            made = OKPKey.generate_key("Ed25519", {"kid": kid})
        case curve:
            made = ECKey.generate_key(curve, {"kid": kid})
    return made


def jwks(*keys: Key) -> bytes:
    """The published form: public parts alone."""
    return json.dumps(KeySet(list(keys or (key(),))).as_dict(private=False)).encode()


def encoded(part: object) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims(now_s: float, **change: Any) -> dict[str, Any]:
    """Claims of a good token; a None takes one out."""
    found = {"sub": "ann", "iss": ISSUER, "aud": AUDIENCE, "iat": int(now_s), "exp": int(now_s) + 300}
    return {name: value for name, value in {**found, **change}.items() if value is not None}


def signed(payload: object, by: Key | None = None, algorithm: str = "RS256", **header: Any) -> str:
    """A token with this payload."""
    by = by or key()
    known = {"alg": algorithm, "kid": by.kid, **header}
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    chosen = {name: value for name, value in known.items() if value is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        return jws.serialize_compact(chosen, data, by, algorithms=[algorithm])


class Provider:
    """Answers at `/keys` and `/token`; a test changes what."""

    def __init__(self) -> None:
        self.keys = jwks()
        self.token: tuple[int, bytes] = 200, b"{}"
        self.asked: list[tuple[str, bytes, str]] = []
        """Path, body and authorization of each request."""
        self.status = 200
        self.url = ""


@contextmanager
def serving() -> Iterator[Provider]:
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            provider.asked.append((self.path, body, self.headers.get("Authorization", "")))
            status, content = (provider.status, provider.keys) if self.path == "/keys" else provider.token
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/keys?again")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    provider.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def settings(directory: Path, *keys: Key, **more: str) -> dict[str, str]:
    """Of a broker whose listener CLIENTS takes tokens, by keys in a file."""
    path = directory / "jwks.json"
    path.write_bytes(jwks(*keys))
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": path.as_uri(),
        "sasl.oauthbearer.expected.audience": f"other,{AUDIENCE}",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
