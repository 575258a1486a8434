"""Frontend: HTTP and gRPC APIs in front, tokenizers and engine cores behind. The LLM class runs it as a library."""
