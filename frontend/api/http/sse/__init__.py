"""Writes answers as server-sent events, and large answers in pieces."""
