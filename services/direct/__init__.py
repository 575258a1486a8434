"""The direct carrier: calls between services of one process and event loop, messages by reference."""
