"""Scheduling: which tokens of which requests are computed in the next step, and what a step's result means."""
