"""Scheduling: chooses the tokens of the next step, and applies the results of steps to requests."""
