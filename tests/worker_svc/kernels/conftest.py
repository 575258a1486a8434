"""Kernels on host memory are interpreted."""

from tests.worker_svc import fast_interpreter

fast_interpreter.install()
