"""Distributed: vLLM's clean-up functions for programs that load several models, under vLLM's import path."""

import gc


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Garbage-collect unreferenced LLMs, which ends their services."""
    del shutdown_ray
    gc.collect()
