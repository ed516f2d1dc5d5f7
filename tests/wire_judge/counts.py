"""The tally of a judge's stories."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counts:
    """The stories so far, and the differences in them."""

    stories: int = 0
    known: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)

    def show(self) -> int:
        """Print the tally and return the exit code: 1 if a difference is not documented."""
        for name, number in self.known.most_common():
            print(f"{number:6}  {name}")
        for what, number in self.unknown.most_common():
            print(f"{number:6}  NOT DOCUMENTED: {what}")
        print(f"{self.stories} stories, {self.unknown.total()} differences that are not documented")
        return 1 if self.unknown else 0
