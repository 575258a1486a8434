"""Metrics of the frontend, and the requests that ended last."""
