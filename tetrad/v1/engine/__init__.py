"""The engine's classes, in the places where vLLM V1 has them."""
