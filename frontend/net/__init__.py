"""Addresses, retries and batching: what every connection to a peer needs."""
