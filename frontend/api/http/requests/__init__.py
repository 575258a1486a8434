"""Reads requests: bodies within limits, headers, and the requested model."""
