"""PrefillFirst: has a producer compute the prompt of a request before a consumer generates.

A dispatch: it sends a request first to an engine core with --kv-role producer, as a probe of one token, and then to one with
--kv-role consumer, which reads the KV blocks of the prompt. If the first phase fails in any way, the consumer computes the
prompt itself: nothing is lost, and the tokens are the same. Knows roles and the places of blocks; knows no texts.
"""

import time
from collections.abc import Sequence
from typing import Protocol

from tetrad.frontend.engine.client import EngineClient
from tetrad.frontend.engine.client_sequence import ActiveSequence, Engine
from tetrad.frontend.engine.facts import KvRole
from tetrad.frontend.engine.kv_transfer_wire import encode_kv_transfer
from tetrad.frontend.request.request_state import Prefilled, RequestState
from tetrad.frontend.request.sequence import Sequence as OutputSequence
from tetrad.frontend.request.steps import RichUpdate
from tetrad.frontend.routing.placement import Placement
from tetrad.frontend.routing.pool import EnginePool
from tetrad.frontend.routing.prefill import Prefill
from tetrad.frontend.routing.prefills import Prefills
from tetrad.frontend.routing.probe_wire import probe_of
from tetrad.services.errors import TetradError, Unavailable
from tetrad.services.log import get_logger

log = get_logger()


class Requests(Protocol):
    """The unfinished requests."""

    def new_handle(self) -> int:
        """Return a handle that no unfinished sequence uses."""

    def move(self, sequence: OutputSequence, engine: Engine) -> None:
        """Record that another engine continues a sequence."""

    def fail_request(self, request: RequestState, error: TetradError) -> None:
        """End a request with an error."""


class Metrics(Protocol):
    """The counts of first phases."""

    def observe_prefill(self, *, is_done: bool) -> None:
        """Record the end of a first phase."""


class PrefillFirst:
    """The dispatch of a frontend whose engine cores are producers and consumers.

    Args:
        pool: chooses engine cores.
        prefills: the first phases under way.
        requests: the unfinished requests.
        metrics: counts the first phases.
        min_tokens: smallest number of prompt tokens to compute for which a producer is used.
        timeout_s: longest duration of a first phase, in seconds.
    """

    def __init__(
        self, pool: EnginePool, prefills: Prefills, requests: Requests, metrics: Metrics, *, min_tokens: int, timeout_s: float
    ) -> None:
        self._pool, self._prefills, self._requests, self._metrics = pool, prefills, requests, metrics
        self._min_tokens, self._timeout_s = min_tokens, timeout_s
        # Producers that did not answer in time -> when the next prompt goes to them (monotonic clock). After an answer all do.
        self._slow: dict[EngineClient, float] = {}

    def send(self, placement: Placement, active: Sequence[ActiveSequence]) -> None:
        """Send the sequences of one request; see Dispatch."""
        first = active[0]
        producer = self._producer_of(first) if self._is_worthwhile(placement, first) else None
        if producer is None:
            self._pool.send(placement, active)
        elif first.sequence.max_tokens == 1 and first.most_bytes <= producer.max_message_bytes:
            self._run_on(producer, active)
        else:
            self._begin(producer, placement.engine, active)

    def _is_worthwhile(self, placement: Placement, first: ActiveSequence) -> bool:
        """Return whether a consumer was chosen for the request, and much of its prompt is to be computed."""
        info = placement.engine.info
        if info is None or info.kv_role is not KvRole.CONSUMER:
            return False
        if first.message.HasField("data_parallel_rank") or first.message.HasField("kv_transfer"):
            return False  # the client itself says where the request runs
        if first.sequence.max_tokens > 1 and not _can_read_blocks(first):
            return False
        # The last token is computed in any case, for its logits.
        num_tokens = (len(first.sequence.prompt_token_ids) - 1) // info.block_size * info.block_size
        return num_tokens - placement.num_held_tokens >= max(self._min_tokens, info.block_size)

    def _run_on(self, producer: EngineClient, active: Sequence[ActiveSequence]) -> None:
        """Run a request wholly on a producer: a single token is a part of computing its prompt."""
        for each in active:
            self._requests.move(each.sequence, producer)
            producer.add(each)

    def _begin(self, producer: EngineClient, consumer: EngineClient, active: Sequence[ActiveSequence]) -> None:
        """Begin the first phase of a request."""
        probe = probe_of(active[0], self._requests.new_handle(), producer)
        prefill = Prefill(probe, producer, consumer, active, self._go_on, self._prefills.remove)
        self._prefills.add(prefill)
        for each in active:
            self._requests.move(each.sequence, prefill)
        prefill.expire_after(self._timeout_s, lambda: self._give_up(prefill))
        producer.add(probe)

    def _producer_of(self, first: ActiveSequence) -> EngineClient | None:
        message, now = first.message, time.monotonic()
        avoided = {engine for engine, until in self._slow.items() if until > now}
        salt, lora_name = message.cache_salt, message.lora_request.name
        chosen = self._pool.choose_producer(first.known_prompt, salt, lora_name, first.features, avoided)
        if chosen is not None and chosen in self._slow:
            self._slow[chosen] = now + self._timeout_s
        return chosen

    def _give_up(self, prefill: Prefill) -> None:
        """End a first phase that takes too long; its producer gets no prompts for as long a time, and then one."""
        target, limit_s = prefill.producer.target, self._timeout_s
        self._slow[prefill.producer] = time.monotonic() + limit_s
        prefill.fail(Unavailable(f"The engine core at {target} did not compute a prompt within {limit_s:g} s."))

    def _go_on(self, prefill: Prefill, waiting: list[ActiveSequence], result: RichUpdate | TetradError) -> None:
        """Send the sequences to a consumer, with the place of their prompt's blocks if the first phase has succeeded."""
        if not waiting:
            return
        request, last = waiting[0].request, RichUpdate() if isinstance(result, TetradError) else result
        fields = waiting[0].sequence.span.context.log_fields(request.request_id)
        self._metrics.observe_prefill(is_done=last.kv_transfer is not None)
        if not isinstance(result, TetradError):
            self._slow.pop(prefill.producer, None)
        if last.kv_transfer is None:
            reason = str(result) if isinstance(result, TetradError) else _why_not_kept(last)
            log.info("request.not_prefilled", **fields, target=prefill.producer.target, reason=reason)
        else:
            request.prefilled = Prefilled(last.num_cached_tokens or 0, last.queued_time_s or 0.0, last.prefill_time_s or 0.0)
        try:
            consumer = self._consumer_of(prefill, waiting[0])
            for each in waiting:
                self._add_transfer(each, consumer, last)
                self._requests.move(each.sequence, consumer)
                consumer.add(each)
        except TetradError as error:
            self._requests.fail_request(request, error)

    def _consumer_of(self, prefill: Prefill, first: ActiveSequence) -> EngineClient:
        """Return the engine core that was chosen at the request's arrival, or a better one if it has a problem now."""
        if prefill.consumer.connected and not prefill.consumer.problem:
            return prefill.consumer
        salt, lora_name = first.message.cache_salt, first.message.lora_request.name
        return self._pool.choose(None, first.known_prompt, salt, lora_name, first.features).engine

    def _add_transfer(self, active: ActiveSequence, consumer: EngineClient, last: RichUpdate) -> None:
        if last.kv_transfer is None or consumer.info is None or not consumer.info.kv_role.receives:
            return
        active.message.kv_transfer.CopyFrom(encode_kv_transfer(last.kv_transfer))
        size = active.num_message_bytes
        active.num_message_bytes, active.may_drop_transfer = active.message.ByteSize(), True
        if active.most_bytes > consumer.max_message_bytes:
            active.message.ClearField("kv_transfer")
            active.num_message_bytes = size
        active.sequence.span.add_event("prefilled", {"num_remote_tokens": last.kv_transfer.remote_num_tokens})


def _why_not_kept(last: RichUpdate) -> str:
    if last.finish_reason == "length":
        return "the engine core kept no blocks: those that are kept fill half of its KV cache"
    return f"it ended with {last.finish_reason}"


def _can_read_blocks(first: ActiveSequence) -> bool:
    """Return whether the blocks of a request's prompt have names, and the request needs no results of each token of it."""
    params = first.request.params
    return first.embeds is None and not params.needs_whole_prompt and not params.skip_reading_prefix_cache
