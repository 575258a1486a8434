"""Frontend: serves the HTTP and gRPC APIs with tokenizers and engine cores. The LLM class runs it as a library."""
