"""Layout check: refuses a KV layout that does not fit into memory, before anything is allocated.

Called by the worker, and by devices whose blocks are in host memory. Without this check, a huge number would cause a
MemoryError deep in a library, or the system would grant the pages and kill the process later. Knows sizes; knows no tensors.
"""

from collections.abc import Sequence

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.core.device import KvGroup, KvLayout
from tetrad.worker_svc.core.host import available_memory_bytes
from tetrad.worker_svc.core.memory_shortage import not_available

MAX_NUM_SEQS = 1 << 16
MAX_CACHE_BYTES = 1 << 48
"""Limit of a KV cache in bytes, 256 TiB: no device has more memory, and sums of sizes stay far below 64 bits."""
_ID_BYTES = 4
LOWER_STEP = "Lower --max-num-batched-tokens, --max-num-seqs or --kv-cache-memory-gib."
LOWER_KV_CACHE = "Lower --kv-cache-memory-gib, --num-gpu-blocks-override, --max-num-seqs or --max-model-len."


def check_layout(layout: KvLayout, block_size_bytes: int) -> None:
    """Raise FailedPrecondition, with value and limit, if the layout's tables or blocks are too large for any machine."""
    if layout.max_num_seqs > MAX_NUM_SEQS:
        raise FailedPrecondition(f"max_num_seqs must be at most {MAX_NUM_SEQS}, got {layout.max_num_seqs}.")
    for name in ("num_blocks", "num_host_blocks"):
        size_bytes = getattr(layout, name) * block_size_bytes
        if size_bytes > MAX_CACHE_BYTES:
            raise FailedPrecondition(
                f"{name} {getattr(layout, name)} of block_size {layout.block_size} take {size_bytes} bytes; "
                f"a KV cache has at most {MAX_CACHE_BYTES}."
            )
    tables_bytes = layout.max_num_seqs * (layout.max_model_len + layout.max_model_len // layout.block_size) * _ID_BYTES
    what = f"The tables of max_num_seqs {layout.max_num_seqs} of max_model_len {layout.max_model_len}"
    _check_host(tables_bytes, what, "Lower --max-num-seqs or --max-model-len.")


def check_positions(layout: KvLayout, max_position_embeddings: int) -> None:
    """Raise FailedPrecondition if the model has fewer positions than the layout's longest sequence."""
    if layout.max_model_len > max_position_embeddings:
        raise FailedPrecondition(
            f"max_model_len {layout.max_model_len} exceeds the model's {max_position_embeddings} positions."
        )


def check_groups(groups: Sequence[KvGroup], own: Sequence[KvGroup]) -> None:
    """Raise FailedPrecondition if `groups` are not the model's `own`; no groups mean one group."""
    if tuple(groups) != (tuple(own) if len(own) > 1 or groups else ()):
        raise FailedPrecondition(
            f"Plans would have block tables for {len(groups) or 1} KV groups; the model's layers form {len(own)}: "
            f"{'; '.join(map(str, own))}. Engine core and workers must be of one release and have one model."
        )


def check_host_cache(layout: KvLayout, block_size_bytes: int) -> None:
    """Raise FailedPrecondition if the KV blocks do not fit into the memory that is available to this process."""
    _check_host(
        layout.num_blocks * block_size_bytes,
        f"The KV cache of num_blocks {layout.num_blocks} of block_size {layout.block_size}",
        LOWER_KV_CACHE,
    )


def check_host_blocks(num_host_blocks: int, block_size_bytes: int) -> None:
    """Raise FailedPrecondition if the second tier does not fit into the memory that is available to this process."""
    what = f"The second tier (swap_space) of num_host_blocks {num_host_blocks}"
    _check_host(num_host_blocks * block_size_bytes, what, "Lower --swap-space.")


def _check_host(size_bytes: int, what: str, advice: str) -> None:
    if size_bytes > available_memory_bytes():
        raise not_available(what, size_bytes, advice)
