"""The Responses API, for OpenAI's clients."""
