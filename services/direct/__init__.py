"""The direct carrier: calls between services of one process and event loop, with messages passed by reference."""
