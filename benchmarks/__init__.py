"""Benchmarks: `make bench` runs them all and writes benchmarks/README.md."""

import os

from tetrad.services.rpc.grpc_pollers import GRPC_POLLERS

# Those that speak gRPC themselves wait as the services do. Before anything here imports it.
os.environ.update(GRPC_POLLERS)
