"""The Responses API, as OpenAI's clients speak it."""
