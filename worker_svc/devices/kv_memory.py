"""KV memory: the share of a device's free memory for the KV cache, by the setting kv_cache_memory_gib."""

from tetrad.services.errors import FailedPrecondition

_GIB = 1 << 30


def kv_cache_bytes(wanted_gib: float | None, free_bytes: int, *, default_bytes: int, why: str) -> int:
    """Return the bytes for KV blocks: what is wanted, or by default at most `default_bytes` of what is free.

    FailedPrecondition, with both figures, if more is wanted than is free.

    Args:
        wanted_gib: kv_cache_memory_gib; None: it is not set.
        free_bytes: what KV blocks could take.
        why: what makes it so many, for the error.
    """
    if wanted_gib is None:
        return max(0, min(default_bytes, free_bytes))
    if wanted_gib * _GIB > free_bytes:
        raise FailedPrecondition(
            f"kv_cache_memory_gib {wanted_gib:g} does not fit: {max(0, free_bytes) / _GIB:.1f} GiB can be had ({why})."
        )
    return int(wanted_gib * _GIB)
