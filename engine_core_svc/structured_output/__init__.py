"""Structured outputs: computes which tokens a request's constraint allows next. Only this package imports llguidance."""
