"""Schemas by number: from a registry over HTTP, or from a directory with a file for each.

    http://host:8081        GET /schemas/ids/7: {"schema": "…"}
    /mnt/schemas            7.avsc

A number never gets another schema, so callers keep what they got. A registry that does not answer is asked
again; one that refuses a login is not.
"""

from __future__ import annotations

import json
import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit

from logstore.broker.security import web
from logstore.disk.clocks import steady_s
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import OsDisk, read_small_file
from logstore.spark.errors import InvalidOption

PAUSES_S: Final = (0.2, 1.0, 3.0)
"""Waits between requests that found no answer."""
KEPT_S: Final = 30.0
"""How long a number is not asked for again that the registry did not have."""
_NO_SCHEMA: Final = 40403
"""What a registry says of an unknown id; another 404 is a wrong address."""
_MOST_KEPT: Final = 10_000


class UnknownSchema(ValueError):
    """There is no Avro schema of this number. The message is the reason for which its row is refused."""


class RegistryUnavailable(EngineError):
    """A registry that does not answer, or not to us. The message names it and what to do."""

    code = ErrorCode.NETWORK_EXCEPTION


_unknown: dict[tuple[Registry, int], tuple[str, float]] = {}
"""The reasons why numbers have no schema, and until when they are taken for granted, in this process."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry: `url`, or `directory`. `login` is `user:password`; it is in no message."""

    url: str | None
    directory: str | None
    login: str | None = field(default=None, repr=False)

    @classmethod
    def at(cls, place: str, login: str | None = None) -> Registry:
        """Return the registry at a URL, which may have user and password, or in a directory.

        Raises `InvalidOption`.
        """
        if "://" not in place:
            if login is not None:
                raise InvalidOption("a directory of schemas takes no login")
            return cls(None, place)
        try:
            parts = urlsplit(place)
            port = parts.port
        except ValueError as error:
            raise InvalidOption(f"the registry's URL is invalid: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidOption("a registry is http://host:port or https://host:port, or a directory")
        if parts.username is not None:
            if login is not None:
                raise InvalidOption("the registry's login is given twice: in its URL and beside it")
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        host = host if port is None else f"{host}:{port}"
        return cls(f"{parts.scheme}://{host}{parts.path.rstrip('/')}", None, login)

    def schema(self, number: int, pause: Callable[[float], None] = time.sleep) -> str:
        """Return the schema of a number as JSON. Raises `UnknownSchema` and `RegistryUnavailable`."""
        known = _unknown.get((self, number))
        if known is not None and steady_s() < known[1]:
            raise UnknownSchema(known[0])
        try:
            return self._from_file(number) if self.directory is not None else self._asked(number, pause)
        except UnknownSchema as error:
            if len(_unknown) >= _MOST_KEPT:
                _unknown.clear()
            _unknown[self, number] = str(error), steady_s() + KEPT_S
            raise

    def _from_file(self, number: int) -> str:
        path = f"{self.directory}/{number}.avsc"
        try:
            content = read_small_file(OsDisk(), path)
        except OSError as error:
            raise RegistryUnavailable(f"schema {number} cannot be read: {error}") from error
        if content is None:
            raise UnknownSchema(f"schema {number} is not in {self.directory}")
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise UnknownSchema(f"{path} is not UTF-8") from error

    def _asked(self, number: int, pause: Callable[[float], None]) -> str:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self.login is not None:
            headers["Authorization"] = f"Basic {b64encode(self.login.encode()).decode()}"
        context = ssl.create_default_context()
        for pause_s in (*PAUSES_S, None):
            try:
                return self._of(
                    number, web.read(f"{self.url}/schemas/ids/{number}", context, headers=headers)
                )
            except HTTPError as error:
                if error.code == 404 and _error_code(error.read(web.MOST_BYTES)) == _NO_SCHEMA:
                    raise UnknownSchema(f"schema {number} is not in the registry") from error
                if error.code in (401, 403):
                    raise RegistryUnavailable(
                        f"the registry {self.url} refuses our login ({error.code}): check user and password"
                    ) from error
                if pause_s is None or (error.code < 500 and error.code != 429):
                    raise RegistryUnavailable(
                        f"the registry {self.url} answers {error.code} for schema {number}: check its address"
                    ) from error
            except OSError as error:
                if pause_s is None:
                    raise RegistryUnavailable(
                        f"the registry {self.url} gives no schema: {error}. Check its address, and that "
                        "executors reach it"
                    ) from error
            pause(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def _of(self, number: int, content: bytes) -> str:
        try:
            answer: Any = json.loads(content)
            text = answer["schema"]
        except (ValueError, TypeError, KeyError) as error:
            raise RegistryUnavailable(
                f"{self.url} is not a schema registry: its answer for schema {number} has no schema"
            ) from error
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise UnknownSchema(f"schema {number} is {kind}, not AVRO")
        if answer.get("references"):
            raise UnknownSchema(f"schema {number} refers to other schemas, which is not supported")
        return str(text)


def _error_code(content: bytes) -> object:
    try:
        answer = json.loads(content)
    except ValueError:
        return None
    return answer.get("error_code") if isinstance(answer, dict) else None
