"""Metrics, traces of requests and of steps, and profiles."""
