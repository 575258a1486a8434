"""OpenAI's API over HTTP: one file per concern; everything about requests themselves is AsyncLLM's."""
