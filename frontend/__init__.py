"""The life of a request: HTTP and gRPC in front, tokenizer and engine core behind. Also what the LLM class runs."""
