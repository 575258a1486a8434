"""Common parts of all connections to peers: addresses, retries, batching."""
