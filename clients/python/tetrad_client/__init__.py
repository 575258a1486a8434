"""A typed client of Tetrad's public gRPC API: `from tetrad_client import Client`. The stubs are in tetrad_client.v1."""

from tetrad_client.client import CallFailed, Client

__all__ = ["CallFailed", "Client"]
