"""KV memory: computes the size of the KV cache from the device's free memory and the setting kv_cache_memory_gib."""

from tetrad.services.errors import FailedPrecondition

_GIB = 1 << 30


def kv_cache_bytes(wanted_gib: float | None, free_bytes: int, *, default_bytes: int, why: str) -> int:
    """Return the bytes for KV blocks: `wanted_gib`, or by default the smaller of `default_bytes` and `free_bytes`.

    Raises FailedPrecondition, with both figures, if `wanted_gib` exceeds `free_bytes`.

    Args:
        wanted_gib: kv_cache_memory_gib; None: not set.
        free_bytes: memory that is free for KV blocks; may be negative.
        why: how `free_bytes` was determined, for the error message.
    """
    if wanted_gib is None:
        return max(0, min(default_bytes, free_bytes))
    if wanted_gib * _GIB > free_bytes:
        raise FailedPrecondition(
            f"kv_cache_memory_gib {wanted_gib:g} does not fit: {max(0, free_bytes) / _GIB:.1f} GiB can be had ({why})."
        )
    return int(wanted_gib * _GIB)
