"""Each trouble on three processes: `health` lists it first, `why` explains it, its next step ends it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.troubles.lab import Trouble, lab
from tests.troubles.table import TROUBLES

LONGEST_S = 400


def names(trouble: Trouble, facts: dict[str, Any]) -> bool:
    """Whether these facts are of the trouble, with its step."""
    wanted = {"subject": trouble.subject, "says": trouble.says, "next_step": trouble.step}
    wanted["evidence"] = trouble.evidence
    return all(re.search(pattern, str(facts[key])) for key, pattern in wanted.items() if key in facts)


@pytest.mark.interop
@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda each: each.name)
def test_a_trouble_is_named_explained_and_ended(trouble: Trouble, tmp_path: Path) -> None:
    home = tmp_path / "cluster"
    with lab(home, trouble.settings, small_disk=trouble.needs_mount) as troubled:
        troubled.wait_until_sound()
        trouble.cause(troubled)
        troubled.wait_for(
            f"health lists {trouble.name} first",
            lambda: bool(found := troubled.health()) and names(trouble, found[0]),
        )
        first = troubled.health()[0]
        answer = troubled.run("why", *trouble.why.split(), "--json", "--bootstrap", troubled.bootstrap)
        assert answer.code == (0 if first["rank"] == "under_way" else 1), answer
        explained = answer.facts[1:]
        assert any(re.search(trouble.step, each["next_step"]) for each in explained), answer.out
        for each in (first, *explained):
            for advice in trouble.wrong:
                assert not re.search(advice, each["next_step"]), each
        trouble.cure(troubled)
        troubled.wait_until_sound()
