"""From tasks to scored, filtered groups: scheduler, episodes, scoring and the buffer."""
