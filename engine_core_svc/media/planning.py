"""Media: decides which items the worker encodes, and how far prompts may be computed before.

Called by the scheduler for requests that have media; NoMedia takes its place for models that take none. The rules are those of
vLLM's scheduler, but encoding runs beside the steps: a step never waits for an encoder.

- A request's items are asked for in their order, as far as the largest step reaches and the encoder cache has room. A chunk
  ends before the first item that is not ready.
- A running request holds references to its items until it has computed their tokens. It holds no item without those before,
  so requests never wait for each other in a circle. A waiting request holds none: it may wait for blocks of those that run.
- If a request can compute nothing for lack of room, requests after it get no room in the same plan.
- A step ends inside no item of a whole modality: it computes the rest of an item, if need be beyond what protects decodes.
- Items in a prefix that is found in the cache, or that another engine core has computed, are not encoded.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tetrad.engine_core_svc.core.media import EncoderEvents, EncoderInput, MediaSpan
from tetrad.engine_core_svc.core.plan import SchedulerOutput
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.media.encoder_cache import EncoderCache, Entry
from tetrad.engine_core_svc.media.store import MediaStore
from tetrad.services.errors import TetradError

_END = attrgetter("end")


@dataclass(slots=True)
class MediaStats:
    """Numbers of items since start: looked for in the encoder cache, and found there, encoded or being encoded."""

    queries: int = 0
    hits: int = 0


class NoMedia:
    """The media of a model that takes none."""

    num_encoding = 0
    must_plan = False
    usage = 0.0
    num_bytes = 0

    def __init__(self) -> None:
        self.stats = MediaStats()

    def check(self, request: Request, inputs: Mapping[str, EncoderInput]) -> None:
        """Do nothing: admission refuses media."""

    def begin(self, request: Request, inputs: Mapping[str, EncoderInput]) -> None:
        """Do nothing."""

    def begin_plan(self) -> None:
        """Do nothing."""

    def most_tokens(self, request: Request, start: int, num_tokens: int) -> int:  # noqa: ARG002 - as in Media
        """Return `num_tokens`."""
        return num_tokens

    def whole_tokens(self, request: Request, start: int, num_tokens: int, most: int) -> int:  # noqa: ARG002 - as in Media
        """Return `num_tokens`."""
        return num_tokens

    def start(self, request: Request) -> None:
        """Do nothing."""

    def advance(self, request: Request, start: int, num_tokens: int) -> None:
        """Do nothing."""

    def stop(self, request: Request) -> None:
        """Do nothing."""

    def end(self, request: Request) -> None:
        """Do nothing."""

    def end_plan(self, plan: SchedulerOutput) -> None:
        """Do nothing."""

    def note_returned(self, step_id: int) -> None:
        """Do nothing."""

    def take_asked(self) -> Sequence[tuple[MediaSpan, EncoderInput]]:
        """Return no items."""
        return ()

    def apply(self, events: EncoderEvents) -> Sequence[tuple[int, TetradError]]:  # noqa: ARG002 - as in Media
        """Return no failures."""
        return ()

    def waiting_keys(self) -> set[int]:
        """Return no keys."""
        return set()

    def reset_cache(self) -> None:
        """Do nothing."""

    def forget_worker(self) -> None:
        """Do nothing."""


class Media:
    """The media of one scheduler's requests.

    Args:
        store: inputs of the items of all unfinished requests.
        cache_size: room of the encoder cache, in embeddings; any single item fits.
        max_step_tokens: maximum number of tokens that one step computes for a request.
        splits_prompts: whether prompts are computed in chunks; otherwise a prompt waits for all its items, and none is longer
            than a step.
        whole: names of the modalities with whole items, see Modality.

    Attributes:
        cache: the entries of the encoder cache.
        stats: see MediaStats.
    """

    def __init__(
        self,
        store: MediaStore,
        cache_size: int,
        *,
        max_step_tokens: int,
        splits_prompts: bool,
        whole: Collection[str] = (),
    ) -> None:
        self.stats = MediaStats()
        self._whole = frozenset(whole)
        self.cache = EncoderCache(cache_size)
        self._store, self._max_step_tokens, self._splits_prompts = store, max_step_tokens, splits_prompts
        self._asked: list[tuple[MediaSpan, EncoderInput]] = []
        self._num_looked_for: dict[int, int] = {}  # by request: the number of its items that are in the statistics
        self._passed: list[tuple[str, int]] = []  # items that the present plan reads for the last time, and their requests
        self._wanted: set[str] = set()  # items of requests that the present plan has considered
        self._is_full = False  # a request that the present plan has considered waits for room

    # --- requests ---------------------------------------------------------------------------------------------------

    def check(self, request: Request, inputs: Mapping[str, EncoderInput]) -> None:
        """Raise the error of MediaStore.check if a new request's media cannot be stored."""
        if request.payload.media:
            self._store.check(request.payload.media, inputs)

    def begin(self, request: Request, inputs: Mapping[str, EncoderInput]) -> None:
        """Store the media of a new request until its end."""
        if request.payload.media:
            self._store.hold(request.payload.media, inputs)
            self._num_looked_for[request.key] = 0

    def start(self, request: Request) -> None:
        """Take references to the items of a request that runs from now on, as far as they are in the cache."""
        horizon = request.num_computed_tokens + self._max_step_tokens
        for span in _following(request.payload.media, request.num_computed_tokens):
            entry = self.cache.find(span) if span.offset < horizon else None
            if entry is None:
                return
            self.cache.use(entry, request.key)

    def stop(self, request: Request) -> None:
        """Return the references of a request that does not run any more."""
        for span in request.payload.media:
            self.cache.end_use(span.identifier, request.key)

    def end(self, request: Request) -> None:
        """Forget a request that has ended."""
        if request.payload.media:
            self.stop(request)
            self._store.release(request.payload.media)
            del self._num_looked_for[request.key]

    # --- plans ------------------------------------------------------------------------------------------------------

    def begin_plan(self) -> None:
        """Note that the scheduler considers the requests in their order for a new plan."""
        self._wanted.clear()
        self._is_full = False

    def most_tokens(self, request: Request, start: int, num_tokens: int) -> int:
        """Return how many of a request's next tokens may be computed, and ask for the items that it needs.

        Args:
            request: the request, which runs or could start now.
            start: position of the first of these tokens.
            num_tokens: number of all tokens that it needs, those of its media included.
        """
        media = request.payload.media
        if not media or start >= media[-1].end:
            return num_tokens
        end = start + num_tokens
        ready_end = self._ready_end(request, start, end)
        if ready_end < end and not self._splits_prompts:
            return 0
        return ready_end - start

    def whole_tokens(self, request: Request, start: int, num_tokens: int, most: int) -> int:
        """Return how many of a request's next tokens to compute such that the step ends inside no item of a whole modality.

        Args:
            request: the request.
            start: position of the first of these tokens.
            num_tokens: number of tokens that the step would compute; 0: none.
            most: number of tokens that the step has room for, if those that protect decodes are not counted.
        """
        span = next(_following(request.payload.media, start + num_tokens), None) if num_tokens else None
        if span is None or span.modality not in self._whole:
            return num_tokens
        if span.offset > start:
            return min(num_tokens, span.offset - start)
        return span.end - start if span.end - start <= most else 0

    def advance(self, request: Request, start: int, num_tokens: int) -> None:
        """Note that the plan computes these tokens: later plans do not read the items of which it computes the last token."""
        media = request.payload.media
        if not media or start >= media[-1].end:
            return
        following = next(_following(media, start + num_tokens), None)
        for span in _following(media, start):
            if span.end > start + num_tokens:
                return
            if following is None or following.identifier != span.identifier:
                self._passed.append((span.identifier, request.key))

    @property
    def must_plan(self) -> bool:
        """Whether a plan is needed to drop entries, although no request computes tokens."""
        return self.cache.has_dropped

    def end_plan(self, plan: SchedulerOutput) -> None:
        """Add the entries to drop to a finished plan; return the references to the items that it reads for the last time."""
        plan.freed_encoder_hashes = self.cache.take_dropped(plan.step_id)
        for identifier, key in self._passed:
            self.cache.end_use(identifier, key)
        self._passed.clear()

    def note_returned(self, step_id: int) -> None:
        """Note that a plan has returned: what it dropped is gone."""
        self.cache.note_returned(step_id)

    # --- the worker -------------------------------------------------------------------------------------------------

    @property
    def num_encoding(self) -> int:
        """The number of items that the worker encodes, or will be asked to encode."""
        return self.cache.num_encoding

    @property
    def usage(self) -> float:
        """The share of the encoder cache that is in use, 0 to 1."""
        return self.cache.num_used / self.cache.size

    @property
    def num_bytes(self) -> int:
        """The bytes of the media of all unfinished requests."""
        return self._store.num_bytes

    def take_asked(self) -> Sequence[tuple[MediaSpan, EncoderInput]]:
        """Return the items to encode since the last call, in order."""
        asked, self._asked = self._asked, []
        return asked

    def apply(self, events: EncoderEvents) -> Sequence[tuple[int, TetradError]]:
        """Apply the ends of encodings; return the key of each request that has waited for a failed item, with the error."""
        for identifier in events.encoded:
            self.cache.note_encoded(identifier)
        return [
            (key, error)
            for identifier, error in events.failures.items()
            for key in sorted(self.cache.note_failed(identifier).waiting)
        ]

    def waiting_keys(self) -> set[int]:
        """Return the keys of the requests that have asked for an item which is being encoded."""
        return {key for entry in self.cache for key in entry.waiting}

    def reset_cache(self) -> None:
        """Drop the embeddings in the cache: those of running requests once these have read them."""
        self.cache.reset()

    def forget_worker(self) -> None:
        """Forget the cache and what was asked: the worker is lost."""
        self.cache = EncoderCache(self.cache.size)
        self._asked = []
        self._passed.clear()

    def _ready_end(self, request: Request, start: int, end: int) -> int:
        """Return the position of the first token up to `end` that waits for an item; ask for items that are missing."""
        ready_end = end
        horizon = start + self._max_step_tokens  # without chunks, a step has room for every prompt
        for span in _following(request.payload.media, start):
            if span.offset >= horizon:
                break
            self._wanted.add(span.identifier)
            entry = self._look_for(request, span)
            if entry is None:
                ready_end = min(ready_end, max(span.offset, start))
                self._is_full |= ready_end == start or not self._splits_prompts
                break
            if request.status is RequestStatus.RUNNING:
                self.cache.use(entry, request.key)
            if not entry.is_ready:
                entry.waiting.add(request.key)
                ready_end = min(ready_end, max(span.offset, start))
        return ready_end

    def _look_for(self, request: Request, span: MediaSpan) -> Entry | None:
        """Return the entry of an item, or a new one; None if it is missing and there is no room."""
        entry = self.cache.find(span)
        self._count(request, span, is_hit=entry is not None)
        if entry is not None or self._is_full:
            return entry
        entry = self.cache.allocate(span, keep=self._wanted)
        if entry is not None:
            self._asked.append((span, self._store.input_of(span.identifier)))
        return entry

    def _count(self, request: Request, span: MediaSpan, *, is_hit: bool) -> None:
        """Count an item of a request the first time that it is looked for."""
        number = bisect_right(request.payload.media, span.offset, key=attrgetter("offset"))
        if number > self._num_looked_for[request.key]:
            self._num_looked_for[request.key] = number
            self.stats.queries += 1
            self.stats.hits += is_hit


def _following(media: Sequence[MediaSpan], start: int) -> Iterator[MediaSpan]:
    """Yield the spans that have tokens at position `start` or after it, in their order."""
    for index in range(bisect_right(media, start, key=_END), len(media)):
        yield media[index]
