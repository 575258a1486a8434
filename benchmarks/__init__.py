"""Benchmarks: `make bench` runs all of them and writes benchmarks/RESULTS.md."""

import os

from tetrad.services.rpc.grpc_pollers import GRPC_POLLERS

# Benchmarks that use gRPC themselves have the services' gRPC settings. They must be set before anything here imports gRPC.
os.environ.update(GRPC_POLLERS)
