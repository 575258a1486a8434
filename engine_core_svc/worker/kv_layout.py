"""KV layout: computes the number of KV blocks and the longest sequence from settings and the worker's measurements.

Measured values are results, not settings. Rule: one request of max_model_len tokens always fits; otherwise the start fails.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.kv_groups import ONE_GROUP, KvGroup, blocks_of_sequence
from tetrad.engine_core_svc.worker.encoder_room import items_that_fit
from tetrad.services.errors import FailedPrecondition, InvalidRequest

_GIB = 1 << 30
_MIB = 1 << 20
_SHORTEST = 2
"""The smallest max_model_len: a prompt of one token and its answer."""
_DEFAULT_STEP = 2048
"""Maximum number of tokens of a step, vLLM's default."""


@dataclass(frozen=True, slots=True)
class KVCacheLayout:
    """The layout of the KV cache, fixed for the lifetime of an engine core.

    Attributes:
        num_blocks: number of blocks, the null block included.
        block_size: tokens per block.
        max_model_len: maximum number of tokens of prompt plus output.
        max_num_batched_tokens: maximum number of tokens computed in one step.
        num_host_blocks: number of blocks of the second tier; 0: there is none.
        cache_dtype: the worker's name for the type of keys and values; empty: unknown.
        groups: the KV groups; each request has one block table per group.
        num_encoded_items: number of items in the encoder cache of a model with an encoder and a decoder; 0: another model.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_batched_tokens: int
    num_host_blocks: int = 0
    cache_dtype: str = ""
    groups: Sequence[KvGroup] = ONE_GROUP
    num_encoded_items: int = 0

    @property
    def num_tokens(self) -> int:
        """The number of tokens that all blocks hold, in sequences of max_model_len; 0: the model keeps no keys and values."""
        if not self.groups:
            return 0
        longest = blocks_of_sequence(self.groups, self.max_model_len, self.block_size, self.max_num_batched_tokens)
        return (self.num_blocks - 1) * self.max_model_len // longest


def plan_layout(
    settings: EngineCoreSettings,
    *,
    block_size_bytes: int,
    available_bytes: int,
    max_position_embeddings: int,
    cache_dtype: str = "",
    groups: Sequence[KvGroup] = ONE_GROUP,
    block_size: int | None = None,
    encoded_item_bytes: int | None = None,
) -> KVCacheLayout:
    """Return the layout for these settings and measurements.

    Args:
        settings: settings of the engine core.
        block_size_bytes: bytes of one block, equal for all groups; 0: unknown.
        available_bytes: bytes available for all blocks.
        max_position_embeddings: the model's maximum sequence length, in tokens.
        cache_dtype, groups: see KVCacheLayout.
        block_size: tokens per block; None: those of the settings.
        encoded_item_bytes: bytes of an item in the encoder cache, of which each request has one; None: requests have none.

    Raises:
        InvalidRequest: max_model_len is longer than the model allows or, without chunked prefill, than a step; or swap_space
            or long_prefill_token_threshold cannot be used.
        FailedPrecondition: the blocks cannot hold one sequence of max_model_len tokens; the message names the numbers.
    """
    max_model_len = _longest_sequence(settings, max_position_embeddings)
    block_size, max_step_tokens = block_size or settings.block_size, largest_step(settings, max_model_len)

    def blocks_for(num_tokens: int) -> int:
        return blocks_of_sequence(groups, num_tokens, block_size, max_step_tokens)

    num_items = 0
    if encoded_item_bytes is not None:
        num_items = items_that_fit(
            available_bytes=available_bytes,
            item_bytes=encoded_item_bytes,
            sequence_bytes=blocks_for(max_model_len) * block_size_bytes,
            max_num_seqs=settings.max_num_seqs,
        )
        available_bytes -= (num_items - 1) * encoded_item_bytes
    blocks_that_fit = available_bytes // block_size_bytes if block_size_bytes else 1 << 20
    # At most what max_num_seqs sequences of full length can use, and at least one block beside the null block.
    most_blocks = max(settings.max_num_seqs * blocks_for(max_model_len), 1) + 1
    num_blocks = settings.num_gpu_blocks_override or min(blocks_that_fit, most_blocks)
    capacity = bisect_right(range(max_model_len + 1), num_blocks - 1, key=blocks_for) - 1
    if settings.max_model_len == "auto":
        max_model_len = max(min(max_model_len, capacity), _SHORTEST)
    if capacity < max_model_len:
        held = f"{num_blocks} KV blocks of {block_size} tokens hold one sequence of {max(capacity, 0)} tokens"
        in_bytes = _in_bytes(settings, block_size_bytes, available_bytes, blocks_for(max_model_len))
        raise _too_few_blocks(held, settings, max_model_len, in_bytes)
    return KVCacheLayout(
        num_blocks,
        block_size,
        max_model_len,
        _check_step(settings, max_model_len),
        _host_blocks(settings, block_size_bytes),
        cache_dtype,
        groups,
        num_items,
    )


def _longest_sequence(settings: EngineCoreSettings, max_position_embeddings: int) -> int:
    """Return the max_model_len of the settings, or the model's; "auto" may lower it later. Raises InvalidRequest."""
    wanted = settings.max_model_len
    max_model_len = wanted if isinstance(wanted, int) else max_position_embeddings
    if not _SHORTEST <= max_model_len <= max_position_embeddings:
        raise InvalidRequest(
            f"max_model_len {max_model_len} must be at least {_SHORTEST} and at most {max_position_embeddings}, "
            "the longest sequence the model was made for."
        )
    return max_model_len


def _too_few_blocks(held: str, settings: EngineCoreSettings, max_model_len: int, in_bytes: str) -> FailedPrecondition:
    """Return the error for blocks that hold no sequence of max_model_len tokens; `held` names what they hold."""
    least, way = f"max_model_len is {max_model_len}", "Lower --max-model-len, set it to auto, or give"
    if settings.max_model_len == "auto":
        least, way = f"the shortest max_model_len is {_SHORTEST}", "Give"
    return FailedPrecondition(f"{held}, but {least}{in_bytes}. {way} the KV cache more memory.")


def _in_bytes(settings: EngineCoreSettings, block_size_bytes: int, available_bytes: int, num_blocks: int) -> str:
    """Return the needed and the available memory as text; empty if an option sets the number of blocks."""
    if settings.num_gpu_blocks_override or not block_size_bytes:
        return ""
    needed = (1 + num_blocks) * block_size_bytes
    return f", which needs {needed / _MIB:.0f} MiB of the {available_bytes / _MIB:.0f} MiB that are available"


def largest_step(settings: EngineCoreSettings, max_position_embeddings: int) -> int:
    """Return the maximum number of tokens of a step, before the maximum length of a sequence is known."""
    if settings.max_num_batched_tokens is not None:
        return settings.max_num_batched_tokens
    if settings.enable_chunked_prefill:
        return _DEFAULT_STEP
    return max(_DEFAULT_STEP, longest_prompt(settings, max_position_embeddings))


def longest_prompt(settings: EngineCoreSettings, max_position_embeddings: int) -> int:
    """Return an upper limit of the length of a prompt, in tokens, before the maximum length of a sequence is known."""
    return settings.max_model_len if isinstance(settings.max_model_len, int) else max_position_embeddings


def _check_step(settings: EngineCoreSettings, max_model_len: int) -> int:
    """Return the maximum number of tokens of a step.

    Without chunked prefill a whole sequence must fit it, since it would wait for ever; raises InvalidRequest if it does not, or
    if an option would split prompts.
    """
    num_tokens = largest_step(settings, max_model_len)
    if settings.long_prefill_token_threshold and not settings.enable_chunked_prefill:
        raise InvalidRequest(
            f"long_prefill_token_threshold {settings.long_prefill_token_threshold} splits prompts, and enable_chunked_prefill "
            "is off."
        )
    if num_tokens < max_model_len and not settings.enable_chunked_prefill:
        raise InvalidRequest(
            f"max_num_batched_tokens ({num_tokens}) is smaller than max_model_len ({max_model_len}), and chunked prefill is "
            "off: longer prompts would never fit a step. Increase max_num_batched_tokens, decrease max_model_len, or enable "
            "chunked prefill."
        )
    return num_tokens


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
