"""KV layout: computes the number of KV blocks and the longest sequence from settings and the worker's measurements.

Measured values are results, not settings. Rule: a lone request of max_model_len tokens always fits, or the start fails.
"""

from dataclasses import dataclass

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.services.errors import FailedPrecondition, InvalidRequest

_GIB = 1 << 30
_MIB = 1 << 20
_DEFAULT_STEP = 2048
"""Tokens of a step, as vLLM's default."""


@dataclass(frozen=True, slots=True)
class KVCacheLayout:
    """Fixed for the life of an engine core.

    Attributes:
        num_blocks: the null block included.
        block_size: tokens per block.
        max_model_len: longest prompt plus output, in tokens.
        max_num_batched_tokens: tokens computed in one step.
        num_host_blocks: of the second tier; 0: there is none.
        cache_dtype: type of keys and values, as the worker calls it; empty: unknown.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_batched_tokens: int
    num_host_blocks: int = 0
    cache_dtype: str = ""


def plan_layout(
    settings: EngineCoreSettings,
    *,
    block_size_bytes: int,
    available_bytes: int,
    max_position_embeddings: int,
    cache_dtype: str = "",
) -> KVCacheLayout:
    """Return the layout.

    Raises:
        InvalidRequest: max_model_len is longer than the model was made for or, without chunked prefill, than a step; or
            swap_space has no use.
        FailedPrecondition: the blocks cannot hold one sequence of max_model_len; the message names the numbers.
    """
    wanted = settings.max_model_len
    max_model_len = wanted if isinstance(wanted, int) else max_position_embeddings
    if not 1 < max_model_len <= max_position_embeddings:
        raise InvalidRequest(
            f"max_model_len {max_model_len} must be at least 2 and at most {max_position_embeddings}, "
            "the longest sequence the model was made for."
        )
    num_blocks = settings.num_gpu_blocks_override or _blocks_in_memory(
        settings, available_bytes // block_size_bytes if block_size_bytes else 1 << 20, max_model_len
    )
    capacity = (num_blocks - 1) * settings.block_size
    if capacity < max_model_len and wanted == "auto":
        max_model_len = capacity
    if capacity < max_model_len or max_model_len < 2:
        raise FailedPrecondition(
            f"{num_blocks} KV blocks of {settings.block_size} tokens hold one sequence of {max(capacity, 0)} tokens, but "
            f"max_model_len is {max_model_len}{_in_bytes(settings, block_size_bytes, available_bytes, max_model_len)}. Lower "
            "--max-model-len, set it to auto, or give the KV cache more memory."
        )
    return KVCacheLayout(
        num_blocks,
        settings.block_size,
        max_model_len,
        _check_step(settings, max_model_len),
        _host_blocks(settings, block_size_bytes),
        cache_dtype,
    )


def _in_bytes(settings: EngineCoreSettings, block_size_bytes: int, available_bytes: int, max_model_len: int) -> str:
    """Return what the sequence needs and what there is, where memory, not an option, decides on the blocks."""
    if settings.num_gpu_blocks_override or not block_size_bytes:
        return ""
    needed = (1 - -max_model_len // settings.block_size) * block_size_bytes
    return f", which needs {needed / _MIB:.0f} MiB of the {available_bytes / _MIB:.0f} MiB that are available"


def largest_step(settings: EngineCoreSettings, max_position_embeddings: int) -> int:
    """Return the most tokens that a step may have, before it is known how long a sequence may be."""
    if settings.max_num_batched_tokens is not None:
        return settings.max_num_batched_tokens
    if settings.enable_chunked_prefill:
        return _DEFAULT_STEP
    longest = settings.max_model_len if isinstance(settings.max_model_len, int) else max_position_embeddings
    return max(_DEFAULT_STEP, longest)


def _check_step(settings: EngineCoreSettings, max_model_len: int) -> int:
    """Return the tokens of a step; without chunked prefill a whole sequence must fit, or it would wait for ever."""
    num_tokens = largest_step(settings, max_model_len)
    if num_tokens < max_model_len and not settings.enable_chunked_prefill:
        raise InvalidRequest(
            f"max_num_batched_tokens ({num_tokens}) is smaller than max_model_len ({max_model_len}), and chunked prefill is "
            "off: longer prompts would never fit a step. Increase max_num_batched_tokens, decrease max_model_len, or enable "
            "chunked prefill."
        )
    return num_tokens


def _blocks_in_memory(settings: EngineCoreSettings, blocks_that_fit: int, max_model_len: int) -> int:
    """Return what memory allows, but not more than max_num_seqs sequences of full length could ever use."""
    usable = settings.max_num_seqs * -(-max_model_len // settings.block_size)
    return min(blocks_that_fit, usable + 1)


def _host_blocks(settings: EngineCoreSettings, block_size_bytes: int) -> int:
    if not settings.swap_space or not block_size_bytes:
        return 0
    if not settings.enable_prefix_caching:
        raise InvalidRequest(
            f"swap_space {settings.swap_space:g} keeps blocks of the prefix cache, and enable_prefix_caching is off."
        )
    num_blocks = int(settings.swap_space * _GIB) // block_size_bytes
    if not num_blocks:
        raise InvalidRequest(
            f"swap_space {settings.swap_space:g} GiB holds no KV block, which has {block_size_bytes} bytes; raise it."
        )
    return num_blocks
