"""Benchmarks: `make bench` runs them all and writes benchmarks/README.md."""
