"""EncoderModel: a worker's encoder without a worker. A test decides when it encodes; it checks each plan against its cache."""

from collections import deque

from tests.engine_core_svc.media_values import PLACEHOLDER
from tetrad.engine_core_svc.core.media import EncoderEvents, MediaSpan
from tetrad.engine_core_svc.media.planning import Media
from tetrad.engine_core_svc.media.store import MediaStore
from tetrad.services.errors import InternalError


def image(identifier, offset, length, **fields):
    """Return an image of a prompt, of which each token takes an embedding."""
    fields = {"num_embeds": length, "content_hash": f"hash of {identifier}"} | fields
    return MediaSpan(identifier, "image", offset=offset, length=length, **fields)


def prompt_of(first, size, media):
    """Return `size` token ids, from `first` on, with places for media."""
    tokens = list(range(first, first + size))
    for span in media:
        tokens[span.offset : span.end] = [PLACEHOLDER] * span.length
    return tokens


def media_of(size, *, max_step_tokens=64, max_bytes=1 << 20, splits_prompts=True, whole=()):
    """Return the media of a scheduler whose encoder cache has room for `size` embeddings."""
    return Media(MediaStore(max_bytes), size, max_step_tokens=max_step_tokens, splits_prompts=splits_prompts, whole=whole)


class EncoderModel:
    """The encoder beside a bench. Follows the bench's plans: `note_plan` when one is sent, `run` when it is executed."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.asked, self.cache, self.spans = deque(), {}, {}
        self.order = []

    def take(self):
        """Receive what the scheduler asks for; return the identifiers that wait."""
        for span, _ in self.scheduler.media.take_asked():
            self.asked.append(span)
            self.order.append(span.identifier)
        return [span.identifier for span in self.asked]

    def encode(self):
        """Encode the first item that waits."""
        span = self.asked.popleft()
        assert span.identifier not in self.cache, "it is encoded already"
        self.cache[span.identifier] = span.num_embeds
        assert sum(self.cache.values()) <= self.scheduler.media.cache.size, "the cache exceeds its size"
        return self.scheduler.note_encoded(EncoderEvents([span.identifier]))

    def fail(self):
        """Fail the first item that waits; return the outputs."""
        error = InternalError("It cannot be encoded.")
        return self.scheduler.note_encoded(EncoderEvents(failures={self.asked.popleft().identifier: error}))

    def encode_all(self):
        """Encode all that is asked now."""
        self.take()
        while self.asked:
            self.encode()

    def note_plan(self, plan):
        """Check a plan when it is sent."""
        self._check(plan)

    def run(self, plan):
        """Execute a plan."""
        for identifier in plan.freed_encoder_hashes:
            del self.cache[identifier]
        self._check(plan)

    def _check(self, plan):
        """Check that all items of which the plan has tokens are encoded."""
        rows = [(new.key, new.num_computed_tokens, new.num_scheduled_tokens) for new in plan.new_requests]
        self.spans |= {new.key: new.payload.media for new in plan.new_requests}
        columns = plan.cached_requests
        rows += zip(columns.keys, columns.num_computed_tokens, columns.num_scheduled_tokens, strict=True)
        for key, start, count in rows:
            for span in self.spans[key]:
                if span.offset < start + count and start < span.end:
                    assert span.identifier in self.cache, f"a plan has tokens of {span.identifier}, which is not encoded"
