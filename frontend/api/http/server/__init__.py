"""The HTTP/1.1 server: its socket, connections, their limits, and shutdown."""
