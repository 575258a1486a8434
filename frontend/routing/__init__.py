"""Routing: chooses the engine core of each request by the load of the engine cores and their cached prefixes."""
