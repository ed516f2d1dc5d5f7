"""All stories, by name."""

from __future__ import annotations

from logstore.testing.stories import administration, failover, membership, truncation
from logstore.testing.stories.telling import Story

STORIES: dict[str, Story] = {
    story.name: story
    for story in (*truncation.STORIES, *membership.STORIES, *failover.STORIES, *administration.STORIES)
}
