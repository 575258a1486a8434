"""Chat: makes the assistant's turns of a conversation, for all chat APIs and the LLM class."""
