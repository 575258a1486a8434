"""Routing: chooses the engine core of each request by load, cached prefixes and roles, and sends the request to it."""
