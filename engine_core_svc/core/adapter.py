"""Adapter: one version of a LoRA adapter in the engine core.

Owned by the scheduler's adapters; requests hold the version that they run with. Knows nothing of files or workers.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoraRef:
    """The adapter that a request or an operator names.

    Attributes:
        name: its name for people and in the API.
        lora_id: the number that clients use for it, at least 1.
        path: its directory on the worker's machine.
        load_inplace: whether it replaces the adapter that is loaded under this number.
        base_model_name: name of the base model, from the adapter's files; empty: unknown.
    """

    name: str
    lora_id: int
    path: str
    load_inplace: bool = False
    base_model_name: str = ""

    def is_same(self, other: "LoraRef") -> bool:
        """Return whether both references name the same adapter."""
        return (self.name, self.lora_id, self.path) == (other.name, other.lora_id, other.path)


@dataclass(slots=True, eq=False)
class Adapter:
    """One version of an adapter.

    Attributes:
        ref: the names that clients use for it.
        key: the engine core's own number for this version; the workers use it, too.
        digest: SHA-256 of its files; empty until it was loaded once.
        is_resident: whether the worker has loaded it.
        is_loading: whether it is being loaded.
        is_active: whether requests may run with it now.
        is_pinned: whether it is never evicted.
        is_current: whether new requests use this version.
        was_resident: whether it was loaded before the worker was lost.
        load_number: place of its last load among all loads; smaller is earlier.
        num_crashes: number of workers that crashed while they loaded it, since it was loaded last.
        num_requests: number of its unfinished requests.
        num_admitted: number of its requests that are in the queue or run.
        num_let_in: number of requests that were admitted since it became active.
        last_used: value of a counter when it was last used; larger is later.
        last_step_id: id of the last plan that names one of its requests.
        replaced_path: path of the version that this one has replaced; empty: it has replaced none.
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
    load_number: int = 0
    num_crashes: int = 0
    num_requests: int = 0
    num_admitted: int = 0
    num_let_in: int = 0
    last_used: int = 0
    last_step_id: int = -1
    replaced_path: str = ""

    def has_replaced(self, ref: LoraRef) -> bool:
        """Return whether `ref` names the version that this one has replaced."""
        return (ref.name, ref.path) == (self.ref.name, self.replaced_path)
