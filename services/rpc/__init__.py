"""Calls between services: carriers, channels, servers, interceptors, status codes and the columns of messages."""
