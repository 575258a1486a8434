"""Timers: of idle streams, of running time, and of an event loop that stands still."""
