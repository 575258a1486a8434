"""The Messages API, as Anthropic's clients speak it."""
