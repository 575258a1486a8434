"""Metrics of the frontend, and its last finished requests."""
