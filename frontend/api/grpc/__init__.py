"""The public gRPC API: its servicer, and the conversion of its messages to the values of the HTTP API."""
