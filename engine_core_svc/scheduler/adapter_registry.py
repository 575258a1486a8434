"""AdapterRegistry: the known LoRA adapters, by the number that clients use, and all their versions.

Owned by the scheduler's adapters; the engine adds, replaces and removes adapters on operators' orders. A replaced version stays
for the requests that use it: it is dropped when the last of them has ended and no plan in flight names it. Knows nothing of
places on the worker and of turns.
"""

import itertools
import random
from collections.abc import Callable, Iterator

from tetrad.engine_core_svc.core.adapter import Adapter, LoraRef
from tetrad.services.errors import FailedPrecondition, InvalidRequest, NotFound, Overloaded

_MAX_KNOWN = 10_000
"""Maximum number of known adapters; more are probably an attempt to fill the memory."""
_MAX_BYTES = {"name": 512, "path": 2048, "base_model_name": 512}
"""Maximum size of each field, in bytes of UTF-8."""


class AdapterRegistry:
    """The adapters of one engine.

    Args:
        is_in_flight: returns whether a plan in flight names an adapter.
        evict: unloads an adapter from the worker.

    Attributes:
        versions: all adapters by key, replaced versions included; others only read it.
    """

    def __init__(self, is_in_flight: Callable[[Adapter], bool], evict: Callable[[Adapter], None]) -> None:
        self.versions: dict[int, Adapter] = {}
        self._is_in_flight, self._evict = is_in_flight, evict
        self._current: dict[int, Adapter] = {}  # by the number that clients use
        # A worker that outlives an engine core may still hold adapters of it.
        self._keys = itertools.count(random.randrange(1, 1 << 30))
        self._retired: list[Adapter] = []  # dropped when the result of their last step has arrived

    def __iter__(self) -> Iterator[Adapter]:
        """Iterate over the adapter versions that new requests use."""
        return iter(self._current.values())

    def get(self, lora_id: int) -> Adapter:
        """Return the adapter with this number, as clients use it. Raises NotFound."""
        found = self._current.get(lora_id)
        if found is None:
            raise NotFound(f"There is no adapter with id {lora_id}.", reason="LORA_NOT_FOUND")
        return found

    def resolve(self, ref: LoraRef, *, resumed: bool = False) -> Adapter:
        """Return the adapter that a request names; add it if it is unknown.

        A request may name the version before a replacement: it was sent before its frontend knew of the new one, which it gets.
        One that is `resumed` may not: it began with the other files.

        Raises InvalidRequest if the number belongs to another adapter.
        """
        found = self._current.get(ref.lora_id)
        if found is None:
            return self.add(ref)
        if not (found.ref.is_same(ref) or (found.has_replaced(ref) and not resumed)):
            raise InvalidRequest(
                f"Adapter id {ref.lora_id} is {found.ref.name!r} at {found.ref.path}, not {ref.name!r} at {ref.path}; "
                "unload it, or load the other one in its place (load_inplace).",
                field="lora_request",
            )
        return found

    def add(self, ref: LoraRef) -> Adapter:
        """Add and return a new adapter. New requests use it only if no other adapter has its number.

        Raises InvalidRequest if a field is missing or too long, and Overloaded if too many adapters are known.
        """
        _check_fields(ref)
        if len(self.versions) >= _MAX_KNOWN:
            raise Overloaded(f"{_MAX_KNOWN} adapters are known; unload some first.", retry_after_s=1.0)
        adapter = Adapter(ref, next(self._keys))
        self.versions[adapter.key] = adapter
        if ref.lora_id not in self._current:
            self._current[ref.lora_id] = adapter
        else:
            adapter.is_current = False
        return adapter

    def replace(self, adapter: Adapter) -> None:
        """Make this version the one that new requests use; the version before stays for the requests that use it."""
        before = self._current.get(adapter.ref.lora_id)
        self._current[adapter.ref.lora_id] = adapter
        adapter.is_current = True
        if before is not None and before is not adapter:
            adapter.is_pinned, adapter.replaced_path = before.is_pinned, before.ref.path
            before.is_current = before.is_pinned = False
            self.drop_if_unused(before)

    def remove(self, lora_id: int) -> Adapter:
        """Forget an adapter. Raises FailedPrecondition while unfinished requests use it."""
        adapter = self.get(lora_id)
        if adapter.num_requests:
            raise FailedPrecondition(
                f"Adapter {adapter.ref.name!r} is in use by {adapter.num_requests} unfinished requests; unload it when "
                "they have ended.",
                reason="LORA_IN_USE",
            )
        del self._current[lora_id]
        adapter.is_current = False
        self.drop_if_unused(adapter)
        return adapter

    def discard(self, adapter: Adapter) -> None:
        """Forget a version that could not be loaded, unless requests use it: they let it be loaded again."""
        if adapter.num_requests:
            return
        if self._current.get(adapter.ref.lora_id) is adapter:
            del self._current[adapter.ref.lora_id]
        self.versions.pop(adapter.key, None)

    def drop_if_unused(self, adapter: Adapter) -> None:
        """Forget a version that new requests do not use, once its last request has ended."""
        if adapter.is_current or adapter.num_requests:
            return
        if self._is_in_flight(adapter):
            self._retired.append(adapter)
            return
        if adapter.is_resident:
            self._evict(adapter)
        self.versions.pop(adapter.key, None)

    def drop_retired(self) -> None:
        """Forget the unused versions that a plan in flight named; call it when a step's result has arrived."""
        retired, self._retired = self._retired, []
        for adapter in retired:
            self.drop_if_unused(adapter)


def _check_fields(ref: LoraRef) -> None:
    if ref.lora_id < 1 or not ref.name or not ref.path:
        raise InvalidRequest(f"lora_request needs a name, a path and an id of at least 1, got {ref.lora_id}.")
    for name, most in _MAX_BYTES.items():
        if (num_bytes := len(getattr(ref, name).encode())) > most:
            text = f"lora_request.{name} has {num_bytes} bytes of UTF-8, the limit is {most}."
            raise InvalidRequest(text, field="lora_request")
