"""ASGI middleware: access, request ids, time limits, metrics, and the fast path to the routes."""
