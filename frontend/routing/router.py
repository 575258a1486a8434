"""Router: chooses one of several healthy engine cores for a request.

The cost of an engine core is counted in requests: its unfinished ones, plus a term for its KV usage, minus a term for the
cached part of the prompt. A full cache counts as much as a whole prompt: `prefix_affinity` requests, or a quarter of the
average number of requests, if that is more. So requests with a common prefix stay together until their engine core exceeds the
others by that much.

Frontends share nothing. For a prefix that no engine core holds yet, or several hold, all frontends prefer the same one (the
prefix's home) without communication, as long as new prefixes are spread evenly. Adapters are routed by in the same way: to an
engine core that has the adapter loaded, else to its home. One event loop; knows no sessions.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

from tetrad.frontend.routing.adapter_memory import AdapterMemory
from tetrad.frontend.routing.block_keys import block_keys, first_parent, salt_of
from tetrad.frontend.routing.prefix_memory import PrefixMemory

_MIN_SHARED_TOKENS = 64
"""Shorter prefixes cost too little to route by: every chat begins with the same few tokens of its template."""
_MIN_SHARE = 0.5
"""Cached prefixes count from this share of a prompt on: a common beginning of all prompts should not decide."""
_HOME_SHARE = 0.5
"""Value of being a prefix's or an adapter's home, as a share of the value of having it."""
_MOST_AHEAD = 2
"""An engine that received so many new prefixes more than another can still be the home of the next one."""
_MOST_OWED = 8
"""Maximum of new prefixes that an engine gets first to catch up with others; prefixes that it was too busy for do not count."""


class Candidate(Protocol):
    """An engine, as the router sees it."""

    @property
    def identity(self) -> bytes:
        """Name of the engine that every frontend knows."""

    @property
    def num_requests(self) -> int:
        """Requests that it has, running or waiting, those on their way included."""

    @property
    def kv_cache_usage(self) -> float:
        """Share of its KV blocks in use, 0 to 1."""

    @property
    def prefixes(self) -> PrefixMemory:
        """The prefixes that it holds."""

    @property
    def adapters(self) -> AdapterMemory:
        """The adapters that this frontend expects there."""

    def has_adapter(self, name: str) -> bool:
        """Return whether it has an adapter loaded, as far as is known."""


C = TypeVar("C", bound=Candidate)


class Router:
    """The routing policy of one frontend.

    Args:
        prefix_affinity: requests that an engine may have more than others and still get those whose prefix it holds; 0: load
            alone decides.
    """

    def __init__(self, prefix_affinity: float) -> None:
        self._prefix_affinity = prefix_affinity
        self._turn = 0

    def choose(self, engines: Sequence[C], token_ids: bytes, cache_salt: str = "", lora_name: str = "") -> C:
        """Return one of the engines, and note what it will hold.

        Args:
            engines: at least one.
            token_ids: the prompt, a u32 column.
            cache_salt: only requests with the same one share prefixes.
            lora_name: the adapter that it runs with; only its requests share prefixes.
        """
        self._turn += 1
        keys = self._keys(engines, token_ids, salt_of(cache_salt, lora_name))
        chosen = engines[0] if len(engines) == 1 else self._cheapest(engines, keys, token_ids, lora_name)
        if lora_name:
            chosen.adapters.expect(lora_name)
        if keys:
            chosen.prefixes.expect(keys[chosen.prefixes.block_size])
        return chosen

    def _keys(self, engines: Sequence[C], token_ids: bytes, cache_salt: str) -> dict[int, list[int]]:
        """Return the keys of the prompt's blocks by block size, as a rule the same for all engines."""
        if not self._prefix_affinity:
            return {}
        sizes = {engine.prefixes.block_size for engine in engines}
        return {size: list(block_keys(token_ids, size, first_parent(cache_salt))) if size else [] for size in sizes}

    def _cheapest(self, engines: Sequence[C], keys: dict[int, list[int]], token_ids: bytes, lora_name: str) -> C:
        loads = [engine.num_requests for engine in engines]
        news = _count_new(engines)
        worth = max(self._prefix_affinity, sum(loads) / len(loads) / 4)
        costs = [load + worth * engine.kv_cache_usage for load, engine in zip(loads, engines, strict=True)]
        if lora_name and worth:
            _prefer_adapter(engines, costs, lora_name, worth)
        is_new = True
        if keys and len(token_ids) >= 4 * _MIN_SHARED_TOKENS:
            shares = [_share(engine.prefixes, keys[engine.prefixes.block_size], len(token_ids) // 4) for engine in engines]
            is_new = not any(shares)
            costs = [cost - worth * share for cost, share in zip(costs, shares, strict=True)]
            home = _home(engines, shares, token_ids[: 4 * _MIN_SHARED_TOKENS])
            if not is_new or news[home] <= min(news) + _MOST_AHEAD:
                costs[home] -= worth * _HOME_SHARE
        # Engines of equal cost: the one with the fewest new prefixes, then in turn.
        count = len(engines)
        order = ((costs[i], news[i], (i - self._turn) % count, i) for i in range(count))
        chosen = engines[min(order)[-1]]
        chosen.prefixes.num_new += is_new
        return chosen


def _prefer_adapter(engines: Sequence[C], costs: list[float], lora_name: str, worth: float) -> None:
    """Lower the costs of the engines that have an adapter loaded, most for the one that all frontends agree on."""
    holders = [float(engine.has_adapter(lora_name)) for engine in engines]
    for index, holds in enumerate(holders):
        costs[index] -= worth * _HOME_SHARE * holds
    home = _home(engines, holders, lora_name.encode())
    costs[home] -= worth * (1 - _HOME_SHARE * holders[home])


def _count_new(engines: Sequence[C]) -> list[int]:
    """Return the number of new prefixes that each was given, after forgetting what is ahead of the fewest by too much."""
    most = min(engine.prefixes.num_new for engine in engines) + _MOST_OWED
    for engine in engines:
        engine.prefixes.num_new = min(engine.prefixes.num_new, most)
    return [engine.prefixes.num_new for engine in engines]


def _share(prefixes: PrefixMemory, keys: list[int], num_tokens: int) -> float:
    """Return the share of a prompt that an engine holds; 0 if that is too little to count."""
    num_held = prefixes.num_held(keys) * prefixes.block_size
    return num_held / num_tokens if num_held >= max(_MIN_SHARED_TOKENS, _MIN_SHARE * num_tokens) else 0.0


def _home(engines: Sequence[C], shares: Sequence[float], head: bytes) -> int:
    """Return the index of a prefix's home: the engine with the highest hash of prefix and engine (rendezvous hashing).

    If engines hold the prefix, the home is one of these.
    """
    places = [i for i, share in enumerate(shares) if share] or range(len(engines))
    return max(places, key=lambda i: blake2b(head, digest_size=8, key=engines[i].identity).digest())
