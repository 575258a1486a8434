"""Addresses, retries and batching: common parts of all connections to peers."""
