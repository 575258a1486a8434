"""What programs made for vLLM call between two models, in the place where vLLM has it."""

import gc


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Find LLMs that nobody refers to, whose services then end."""
    del shutdown_ray
    gc.collect()
