"""Metrics and request traces of the worker."""
