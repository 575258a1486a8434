"""Chat: turns of the assistant for a conversation; every chat API and the LLM class share it. One file per noun."""
