"""Distributed: vLLM's clean-up functions between two models, under vLLM's import path."""

import gc


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Collect unreferenced LLMs, whose services then end."""
    del shutdown_ray
    gc.collect()
