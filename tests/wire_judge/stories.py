"""A story: requests to one broker after another, some of which need what earlier responses told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.declarations import Struct

T = TypeVar("T")
Known = MutableMapping[str, Any]
Build = Callable[[Known], Struct]
Learn = Callable[[Any, Known], None]


def nothing(_response: Any, _known: Known) -> None:
    """Learn nothing."""


@dataclass(frozen=True)
class Step:
    """One request. `build` makes it from what the side is known to have answered; `learn` keeps more.

    A request that `may_park` may be answered while later ones are. `trim` drops from a response what other
    stories have left."""

    version: int
    build: Build
    learn: Learn = nothing
    client: str = "a"
    is_answered: bool = True
    may_park: bool = False
    trim: Callable[[Any], None] | None = None
    raw: bytes | None = None
    is_tagged: bool = False
    """Whether header and body have a tag that nobody knows, if the version has tags."""

    def shown(self) -> str:
        """Return the request as it is when nothing is known."""
        request = self.raw if self.raw is not None else self.build({})
        return f"{self.client}: v{self.version} {request!r}"


class Draw:
    """Draws what a story is made of; the same seed draws the same story."""

    def __init__(self, seed: str, versions: Mapping[int, range], name: str = "") -> None:
        """`name` begins the names of the story's topics and groups; the seed, if not given."""
        self._name = name or seed
        self._random, self._versions = Random(seed), versions

    @property
    def keys(self) -> list[int]:
        """The APIs that both sides offer."""
        return sorted(self._versions)

    def pick(self, *choices: T) -> T:
        return self._random.choice(choices)

    def some(self, choices: Sequence[T], most: int) -> list[T]:
        return self._random.sample(list(choices), self._random.randint(1, min(most, len(choices))))

    def chance(self, of: float) -> bool:
        return self._random.random() < of

    def number(self, first: int, last: int) -> int:
        return self._random.randint(first, last)

    def usual(self, value: T, *others: T, of: float = 0.75) -> T:
        """Return `value` mostly, and now and then one of the others."""
        return value if self.chance(of) else self.pick(*others)

    def name(self, short: str) -> str:
        """Return a name that no other story has."""
        return f"{self._name}-{short}"

    def version(self, kind: type[Struct], *, least: int = 0) -> int:
        shared = self._versions[API_OF[kind].key]
        return self.number(max(least, shared[0]), max(least, shared[-1]))

    def step(
        self, kind: type[Struct], build: Build, learn: Learn = nothing, *, least: int = 0, **more: Any
    ) -> Step:
        return self.at(self.version(kind, least=least), build, learn, **more)

    @staticmethod
    def at(version: int, build: Build, learn: Learn = nothing, **more: Any) -> Step:
        """Return a step of a version; fields that it does not have are left out."""
        return Step(version, lambda known: fitted(build(known), version), learn, **more)


def fitted(request: Struct, version: int) -> Any:
    """Return the request with the defaults of the fields that the version does not have."""
    values = {}
    for name, field in request.FIELDS.items():
        if version not in field.versions:
            continue
        value = getattr(request, name)
        if isinstance(value, list):
            value = [fitted(each, version) if isinstance(each, Struct) else each for each in value]
        values[name] = fitted(value, version) if isinstance(value, Struct) else value
    return type(request)(**values)
