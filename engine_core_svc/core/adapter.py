"""Adapter: one version of a LoRA adapter, as the engine core knows it.

Owned by the scheduler's adapters; requests hold the version that they run with. Knows nothing of files or workers.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoraRef:
    """The adapter that a request or an operator names.

    Attributes:
        name: for people, and in the API.
        lora_id: the clients' number for it, at least 1.
        path: its directory, as the worker sees it.
        load_inplace: what is loaded under this number is to be replaced.
        base_model_name: as its files name it; empty: unknown.
    """

    name: str
    lora_id: int
    path: str
    load_inplace: bool = False
    base_model_name: str = ""

    def is_same(self, other: "LoraRef") -> bool:
        """Return whether both mean one adapter."""
        return (self.name, self.lora_id, self.path) == (other.name, other.lora_id, other.path)


@dataclass(slots=True, eq=False)
class Adapter:
    """One version of an adapter.

    Attributes:
        ref: how clients name it.
        key: the engine core's own number for this version; names it to the workers.
        digest: sha256 of its files; empty until it was loaded once.
        is_resident: the worker has it.
        is_loading: it is being loaded.
        is_active: it is one of those that requests may run with now.
        is_pinned: it is never evicted.
        is_current: it is the version that new requests get.
        was_resident: it was before the worker was lost.
        num_requests: unfinished ones that have it.
        num_admitted: those of them that are in the queue or run.
        num_let_in: requests that were admitted since it became active.
        last_used: when it was active last, as a count.
        last_step_id: the last plan that names one of its requests.
    """

    ref: LoraRef
    key: int
    digest: bytes = b""
    is_resident: bool = False
    is_loading: bool = False
    is_active: bool = False
    is_pinned: bool = False
    is_current: bool = True
    was_resident: bool = False
    num_requests: int = 0
    num_admitted: int = 0
    num_let_in: int = 0
    last_used: int = 0
    last_step_id: int = -1
