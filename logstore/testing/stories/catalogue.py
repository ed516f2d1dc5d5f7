"""All stories, by name."""

from __future__ import annotations

from typing import Any

from logstore.testing.stories import administration, failover, leaders, membership, truncation
from logstore.testing.stories.telling import Story

STORIES: dict[str, Story[Any]] = {
    story.name: story
    for story in (
        *truncation.STORIES,
        *membership.STORIES,
        *failover.STORIES,
        *leaders.STORIES,
        *administration.STORIES,
    )
}
