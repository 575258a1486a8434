"""The Messages API, for Anthropic's clients."""
