"""gRPC's polling strategy, which gRPC reads from environment variables only. This file imports nothing."""

GRPC_POLLERS = {"GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener"}
"""Environment of the services; gRPC reads it when it is imported. By default one of gRPC's threads waits for a socket and wakes
another one, which notifies Python; with this setting, the thread that notifies Python waits itself. Measured between two
processes, a message then takes two thirds of the CPU time and of the latency.
"""
