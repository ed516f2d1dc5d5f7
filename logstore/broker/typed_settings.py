"""Values of settings by the fields of config classes: `socket.request.max.bytes` fills
`socket_request_max_bytes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, get_type_hints

from logstore.arguments import whole_number
from logstore.broker.security.secret import Secret
from logstore.config import SettingValue, formatted
from logstore.errors import InvalidConfig


def values_for(config: type[Any], settings: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """Return, by the name of a setting that `config` has, its field and its value.

    Raises `InvalidConfig` for a value of another type than the field's.
    """
    hints = get_type_hints(config)
    found = {}
    for each in fields(config):
        name = each.name.replace("_", ".")
        if name in settings:
            found[name] = each.name, _value(name, settings[name], hints[each.name])
    return found


def _value(name: str, text: str, kind: Any) -> object:
    if kind is str:
        return text
    if kind is Secret:
        return Secret(text)
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise InvalidConfig(f"{name} is {text!r}; expected true or false")
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(text)
        except ValueError:
            choices = ", ".join(str(member.value) for member in kind)
            raise InvalidConfig(f"{name} is {text!r}; expected one of {choices}") from None
    if (number := whole_number(text)) is None:
        raise InvalidConfig(f"{name} is {text!r}; expected a number")
    return number


def as_text(name: str, value: object) -> str:
    """Return a setting's value as text. Raises `InvalidConfig` for what is neither text nor a number."""
    if not isinstance(value, SettingValue):
        raise InvalidConfig(f"{name} is a {type(value).__name__}; it must be text or a number")
    return value if isinstance(value, str) else formatted(value)
