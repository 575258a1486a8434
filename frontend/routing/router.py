"""Router: chooses one of several healthy engine cores for a request.

The cost of an engine core is counted in requests: its unfinished ones, plus a term for its KV usage, minus a term for the
cached part of the prompt. A full cache counts as much as a completely cached prompt: `prefix_affinity` requests, or a quarter
of the average number of requests, if that is more. So requests with a common prefix stay together until the load of their
engine core exceeds that of the others by this number.

Frontends do not communicate. For a prefix that no engine core holds yet, or that several hold, all frontends prefer the same
engine core (the prefix's home), as long as new prefixes are spread evenly. Requests with an adapter are routed in the same way:
to an engine core that has the adapter loaded, else to the adapter's home. One event loop; knows no sessions.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.routing.adapter_memory import AdapterMemory
from tetrad.frontend.routing.block_keys import block_keys, first_parent, media_keys, salt_of
from tetrad.frontend.routing.prefix_memory import PrefixMemory

_MIN_SHARED_TOKENS = 64
"""Shorter prefixes, in tokens, do not affect routing: every chat starts with the same few tokens of its template."""
_MIN_SHARE = 0.5
"""Smallest cached share of a prompt that affects routing: a common start of all prompts should not decide."""
_HOME_SHARE = 0.5
"""Value of being the home of a prefix or adapter, as a share of the value of having it."""
_MOST_AHEAD = 2
"""Maximum lead in new prefixes over another engine core with which an engine core can be the home of the next one."""
_MOST_OWED = 8
"""Maximum lag in new prefixes that an engine core may catch up; a larger one, after a long high load, is reduced to this."""


class Candidate(Protocol):
    """An engine core with the facts that the router uses."""

    @property
    def identity(self) -> bytes:
        """The identity of the engine core, equal in all frontends."""

    @property
    def num_requests(self) -> int:
        """The number of its running and waiting requests, with those being sent."""

    @property
    def kv_cache_usage(self) -> float:
        """The share of its KV blocks in use, 0 to 1."""

    @property
    def prefixes(self) -> PrefixMemory:
        """The prefixes that it holds."""

    @property
    def adapters(self) -> AdapterMemory:
        """The adapters that this frontend expects to be loaded."""

    def has_adapter(self, name: str) -> bool:
        """Return whether the engine core has probably loaded an adapter."""


C = TypeVar("C", bound=Candidate)


class Router:
    """The routing policy of one frontend.

    Args:
        prefix_affinity: number of requests by which an engine core may exceed others and still get requests whose prefix it
            holds; 0: only load decides.
    """

    def __init__(self, prefix_affinity: float) -> None:
        self._prefix_affinity = prefix_affinity
        self._turn = 0

    def choose(
        self,
        engines: Sequence[C],
        token_ids: bytes,
        cache_salt: str = "",
        lora_name: str = "",
        features: Sequence[MediaFeature] = (),
    ) -> C:
        """Return one of the engine cores. See `place`."""
        return self.place(engines, token_ids, cache_salt, lora_name, features)[0]

    def place(
        self,
        engines: Sequence[C],
        token_ids: bytes,
        cache_salt: str = "",
        lora_name: str = "",
        features: Sequence[MediaFeature] = (),
    ) -> tuple[C, int]:
        """Return one of the engine cores, and the number of tokens of the prompt's start that it reports to hold.

        Records the prefix and adapter that it will have.

        Args:
            engines: at least one.
            token_ids: the prompt as a u32 column.
            cache_salt: only requests with the same salt share prefixes.
            lora_name: the adapter of the request; only requests with the same adapter share prefixes.
            features: the images of the prompt; only prompts with the same images at the same places share prefixes.
        """
        self._turn += 1
        keys = self._keys(engines, token_ids, cache_salt, lora_name, features)
        chosen = engines[0] if len(engines) == 1 else self._cheapest(engines, keys, token_ids, lora_name, features)
        if lora_name:
            chosen.adapters.expect(lora_name)
        num_held = 0
        if keys:
            own = keys[chosen.prefixes.block_size]
            num_held = chosen.prefixes.num_reported(own) * chosen.prefixes.block_size
            chosen.prefixes.expect(own)
        return chosen, num_held

    def _keys(
        self,
        engines: Sequence[C],
        token_ids: bytes,
        cache_salt: str,
        lora_name: str = "",
        features: Sequence[MediaFeature] = (),
    ) -> dict[int, list[int]]:
        """Return the keys of the prompt's blocks by block size; usually all engine cores have the same size."""
        if not self._prefix_affinity:
            return {}
        first, num_tokens = first_parent(salt_of(cache_salt, lora_name)), len(token_ids) // 4
        return {
            size: list(block_keys(token_ids, size, first, media_keys(features, size, num_tokens))) if size else []
            for size in {engine.prefixes.block_size for engine in engines}
        }

    def _cheapest(
        self,
        engines: Sequence[C],
        keys: dict[int, list[int]],
        token_ids: bytes,
        lora_name: str,
        features: Sequence[MediaFeature],
    ) -> C:
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
            home = _home(engines, shares, _head(token_ids, features))
            if not is_new or news[home] <= min(news) + _MOST_AHEAD:
                costs[home] -= worth * _HOME_SHARE
        # Of engine cores with equal cost take the one with the fewest new prefixes, then each in turn.
        count = len(engines)
        order = ((costs[i], news[i], (i - self._turn) % count, i) for i in range(count))
        chosen = engines[min(order)[-1]]
        chosen.prefixes.num_new += is_new
        return chosen


def _prefer_adapter(engines: Sequence[C], costs: list[float], lora_name: str, worth: float) -> None:
    """Lower the costs of the engine cores that have an adapter loaded, most for the adapter's home."""
    holders = [float(engine.has_adapter(lora_name)) for engine in engines]
    for index, holds in enumerate(holders):
        costs[index] -= worth * _HOME_SHARE * holds
    home = _home(engines, holders, lora_name.encode())
    costs[home] -= worth * (1 - _HOME_SHARE * holders[home])


def _count_new(engines: Sequence[C]) -> list[int]:
    """Return each engine core's number of new prefixes, after limiting it to the lowest one plus _MOST_OWED."""
    most = min(engine.prefixes.num_new for engine in engines) + _MOST_OWED
    for engine in engines:
        engine.prefixes.num_new = min(engine.prefixes.num_new, most)
    return [engine.prefixes.num_new for engine in engines]


def _share(prefixes: PrefixMemory, keys: list[int], num_tokens: int) -> float:
    """Return the share of a prompt that an engine core holds; 0 if it is too small to affect routing."""
    num_held = prefixes.num_held(keys) * prefixes.block_size
    return num_held / num_tokens if num_held >= max(_MIN_SHARED_TOKENS, _MIN_SHARE * num_tokens) else 0.0


def _head(token_ids: bytes, features: Sequence[MediaFeature]) -> bytes:
    """Return the start of a prompt, with the images in it, which decides on the prefix's home."""
    images = (feature.identifier.encode() for feature in features if feature.offset < _MIN_SHARED_TOKENS)
    return b"".join((token_ids[: 4 * _MIN_SHARED_TOKENS], *images))


def _home(engines: Sequence[C], shares: Sequence[float], head: bytes) -> int:
    """Return the index of a prefix's home: the engine core with the highest hash of prefix and identity (rendezvous hashing).

    If any engine cores hold the prefix, the home is one of them.
    """
    places = [i for i, share in enumerate(shares) if share] or range(len(engines))
    return max(places, key=lambda i: blake2b(head, digest_size=8, key=engines[i].identity).digest())
