"""Secrets: texts that are never printed by accident."""

from __future__ import annotations


class Secret:
    """A text that prints as `***`; `reveal` returns it. Compare secrets with `hmac.compare_digest`."""

    __slots__ = ("_text",)
    __hash__ = None  # type: ignore[assignment]  # not a key: a set of secrets would compare them

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        """Return whether it was given."""
        return bool(self._text)

    def __repr__(self) -> str:
        return "***" if self._text else "''"

    __str__ = __repr__

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled")
