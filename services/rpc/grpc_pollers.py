"""gRPC's polling strategy, set by environment variables, as gRPC has no other interface for it. Imports nothing."""

GRPC_POLLERS = {"GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener"}
"""Environment of the services; gRPC reads it when it is imported. By default one of gRPC's threads waits for a socket and wakes
another, which tells Python; so, the one that tells Python waits itself. Measured between two processes, a message takes two
thirds of the CPU time and of the time.
"""
