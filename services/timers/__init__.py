"""Timers: for idle streams, for running time, and for a blocked event loop."""
