"""Reading of requests: bodies within limits, and headers."""
