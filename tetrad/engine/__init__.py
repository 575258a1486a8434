"""The engine's classes, in the places where vLLM has them."""
