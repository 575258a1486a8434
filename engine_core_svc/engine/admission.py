"""Admission: checks a submission before the scheduler gets it, and makes its Request.

Frontends check the same limits earlier and with more context; these checks apply to every client of the contract.
"""

import itertools
import time
from dataclasses import dataclass, replace
from typing import Literal

from tetrad.engine_core_svc.core.kv_transfer import NO_TRANSFER
from tetrad.engine_core_svc.core.message_sizes import DEFAULT_LIMITS, MessageLimits, MessageSizes
from tetrad.engine_core_svc.core.payload import WorkerPayload
from tetrad.engine_core_svc.core.request import ALONE, NO_LOGPROBS, LogprobWidths, Purpose, Request, RequestStatus
from tetrad.engine_core_svc.core.wire import sampling_of
from tetrad.engine_core_svc.engine.media_check import NO_MEDIA, MediaCheck
from tetrad.engine_core_svc.engine.sampling_wire import check_sampling, check_score_rows, logprob_widths, message_sizes
from tetrad.engine_core_svc.engine.submission_wire import Submission
from tetrad.engine_core_svc.engine.transfer_check import NO_TRANSFERS, TransferCheck
from tetrad.services.errors import InvalidRequest, PromptTooLong, Unsupported
from tetrad.services.log import get_logger

log = get_logger()

_POOLING_BYTES = 64
"""Assumed bytes of the parameters of a pooling request."""
_SPAN_BYTES = 80
"""Upper limit of the bytes of the numbers of a media item's place in a plan, and of its fields."""
_FIELDS_BYTES = 256
"""Assumed bytes of the numbers of a request in a plan, and of the names of its trace headers."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The limits of a request.

    Attributes:
        max_model_len: maximum number of tokens of prompt plus output.
        vocab_size: size of the vocabulary; token ids are smaller.
        priority_order: whether clients use larger or smaller priorities for more urgent requests.
        priorities_count: whether the scheduler uses priorities.
        block_size: tokens per KV block.
        num_kv_groups: number of block tables of a request.
        messages: maximum bytes of a step's messages.
        pools, generates: whether the model pools, and whether it generates.
        needs_all_tokens: whether pooling needs all tokens computed, so that it cannot read the prefix cache.
        answer_row_bytes: bytes of the answer for one token of a prompt, if a request pools tokens.
        embedding_size: number of values of one prompt embedding; 0: prompts must be token ids.
        takes_extra_args: whether the workers have custom logits processors, which read extra_args.
        writes_speech: whether the model has an encoder of audio, so that its outputs may have rules.
        times_tokens: whether the model says when tokens are said.
        media: the limits of media.
    """

    max_model_len: int
    vocab_size: int
    priority_order: Literal["high_first", "low_first"] = "high_first"
    priorities_count: bool = True
    block_size: int = 16
    num_kv_groups: int = 1
    messages: MessageLimits = DEFAULT_LIMITS
    pools: bool = False
    generates: bool = True
    needs_all_tokens: bool = False
    answer_row_bytes: int = 0
    embedding_size: int = 0
    takes_extra_args: bool = False
    scores_prompts: bool = False
    writes_speech: bool = False
    times_tokens: bool = False
    media: MediaCheck = NO_MEDIA
    transfers: TransferCheck = NO_TRANSFERS


class Admission:
    """Turns submissions into requests, and numbers them in order of arrival."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._last_measured: _Measured | None = None
        self._keys = itertools.count(1)
        self._has_warned = False

    def accept(self, submission: Submission, session_key: int) -> Request:
        """Return the request. Raises InvalidRequest or PromptTooLong, which name value and limit, if it cannot run."""
        measured = self._check(submission)
        num_prompt_tokens = len(submission.prompt_token_ids)
        max_tokens = submission.stop.max_tokens
        limit = self._limits.max_model_len
        key = next(self._keys)
        self._warn_of_priority(submission)
        sign = 1 if self._limits.priority_order == "high_first" else -1
        request = Request(
            key=key,
            request_id=submission.request_id,
            token_ids=submission.prompt_token_ids + submission.output_token_ids,
            num_prompt_tokens=num_prompt_tokens,
            max_total_tokens=limit if max_tokens is None else min(limit, num_prompt_tokens + max_tokens),
            purpose=Purpose.POOLING if submission.pools else Purpose.GENERATION,
            stop=submission.stop,
            session_key=session_key,
            handle=submission.handle,
            priority=sign * submission.priority,
            # Behind a clock that is ahead, a request would wait for all later ones of other clients.
            arrival_time=min(submission.arrival_time, time.time()),
            sequence_number=key,
            call=(session_key, submission.call_number) if submission.call_number else ALONE,
            cache_salt=submission.cache_salt,
            predicted_ids=submission.predicted_token_ids,
            skip_reading_prefix_cache=submission.skip_reading_prefix_cache
            or (submission.pools and self._limits.needs_all_tokens),
            logprobs=measured.widths,
            payload=submission.payload,
            transfer=submission.transfer,
            sizes=replace(measured.sizes, other_bytes=_names_bytes(submission), has_media=bool(submission.payload.media)),
            status=RequestStatus.WAITING if submission.constraint is None else RequestStatus.WAITING_FOR_GRAMMAR,
            queued_at=time.monotonic(),
            context=submission.context,
        )
        self._check_sizes(request)
        return request

    def _warn_of_priority(self, submission: Submission) -> None:
        """Log once that priorities have no effect, when a request has one."""
        if submission.priority and not self._limits.priorities_count and not self._has_warned:
            self._has_warned = True
            log.warning(
                "priority.ignored",
                request_id=submission.request_id,
                priority=submission.priority,
                scheduling_policy="fcfs",
                remedy="start with --scheduling-policy priority",
            )

    def _check_sizes(self, request: Request) -> None:
        """Raise InvalidRequest, which names size and limit, if the request does not fit a message even when it runs alone."""
        sizes, limits = request.sizes, self._limits.messages
        described_bytes = sizes.params_bytes + sizes.described_bytes(
            request.max_total_tokens, self._limits.block_size, self._limits.num_kv_groups
        )
        of_prompt = "prompt_logprobs" if request.logprobs.prompt else "prompt_score_ids"
        for what, field, num_bytes, limit in (
            ("The request", "sampling_params", described_bytes, limits.described_bytes),
            ("The logprobs of a token", "logprobs", sizes.logprob_bytes, limits.position_bytes),
            (f"The {of_prompt} of a token", of_prompt, sizes.prompt_logprob_bytes, limits.position_bytes),
            (f"The {of_prompt}", of_prompt, request.prompt_logprob_bytes, limits.prompt_logprob_bytes),
            ("The answer for all tokens", "prompt_token_ids", sizes.answer_bytes, limits.prompt_logprob_bytes),
        ):
            if num_bytes > limit:
                text = f"{what} would take {num_bytes} bytes of a message between the services; the limit is {limit}."
                raise InvalidRequest(text, field=field, reason="MESSAGE_TOO_LARGE")

    def _check(self, submission: Submission) -> "_Measured":
        prompt, output, limits = submission.prompt_token_ids, submission.output_token_ids, self._limits
        if not submission.request_id:
            raise InvalidRequest("request_id must not be empty.", field="request_id")
        if not prompt:
            raise InvalidRequest("The decoder prompt cannot be empty.", field="prompt_token_ids")
        if not (limits.pools if submission.pools else limits.generates):
            done = "generates and does not pool" if submission.pools else "pools and does not generate"
            raise InvalidRequest(f"The model of this engine {done}.", field="pooling_params")
        if len(prompt) + (not submission.pools) > limits.max_model_len:
            raise PromptTooLong.of_tokens(len(prompt), limits.max_model_len, field="prompt_token_ids")
        largest = max(prompt + output)
        if largest >= limits.vocab_size:
            raise InvalidRequest(
                f"Token id {largest} is out of vocabulary. Vocabulary size: {limits.vocab_size}.", field="prompt_token_ids"
            )
        self._check_embeds(submission)
        if submission.transfer is not NO_TRANSFER:
            limits.transfers.check(submission.transfer, pools=submission.pools)
        limits.media.check(submission.payload.media, submission.encoder_inputs, len(prompt))
        if submission.predicted_token_ids and max(submission.predicted_token_ids) >= limits.vocab_size:
            largest = max(submission.predicted_token_ids)
            text = f"Token id {largest} is out of vocabulary. Vocabulary size: {limits.vocab_size}."
            raise InvalidRequest(text, field="predicted_token_ids")
        if submission.pools:
            return _measured_pooling(submission, limits.answer_row_bytes)
        measured = self._measured(submission.payload)
        check_score_rows(sampling_of(submission.payload.params), len(prompt))
        max_tokens = submission.stop.max_tokens
        if max_tokens is not None and max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, got {max_tokens}.", field="max_tokens")
        room = limits.max_model_len if max_tokens is None else min(limits.max_model_len, len(prompt) + max_tokens)
        if len(prompt) + len(output) >= room:
            raise InvalidRequest(
                f"{len(output)} resumed output tokens leave nothing to generate: prompt and output may have {room} tokens.",
                field="resumed_output_token_ids",
            )
        return measured

    def _check_embeds(self, submission: Submission) -> None:
        embeds, size = submission.payload.prompt_embeds, self._limits.embedding_size
        if embeds is None:
            return
        if not size:
            raise Unsupported("prompt_embeds are not supported by this engine's worker.", field="prompt_embeds")
        if embeds.hidden_size != size:
            text = f"`prompt_embeds` hidden_size {embeds.hidden_size} does not match the model's hidden_size {size}."
            raise InvalidRequest(text, field="prompt_embeds")
        for name in ("prompt_logprobs", "prompt_score_ids"):
            if sampling_of(submission.payload.params).HasField(name):
                raise InvalidRequest(f"{name} is not compatible with prompt embeds.", field=name)

    def _measured(self, payload: WorkerPayload) -> "_Measured":
        """Check and measure parameters once for requests that arrive together and share them: they may have 100,000 entries."""
        last = self._last_measured
        if last is None or not last.is_of(payload):
            params, vocab_size = sampling_of(payload.params), self._limits.vocab_size
            if params.HasField("extra_args") and not self._limits.takes_extra_args:
                text = "This engine does not support extra_args: its workers have no logits processors."
                raise Unsupported(text, field="extra_args")
            if params.HasField("prompt_score_ids") and not self._limits.scores_prompts:
                text = "prompt_score_ids is not supported by this engine's worker; upgrade it."
                raise Unsupported(text, field="prompt_score_ids")
            if params.prompt_score_ids.HasField("num_positions") and not self._limits.times_tokens:
                text = "prompt_score_ids.num_positions is not supported: no times of tokens come from this engine's worker."
                raise Unsupported(text, field="prompt_score_ids")
            if params.HasField("speech_rules") and not self._limits.writes_speech:
                raise Unsupported("speech_rules need a model with an encoder of audio.", field="speech_rules")
            check_sampling(params, eos_token_id=payload.eos_token_id, vocab_size=vocab_size)
            widths = logprob_widths(params, vocab_size)
            last = self._last_measured = _Measured(payload, widths, message_sizes(params, widths))
        return last


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """The checked sampling parameters of a payload, with their log-probability widths and message sizes."""

    payload: WorkerPayload
    widths: LogprobWidths
    sizes: MessageSizes

    def is_of(self, payload: WorkerPayload) -> bool:
        """Return whether another payload has the same parameters and end-of-text token."""
        mine = self.payload
        return payload.params is mine.params and payload.eos_token_id == mine.eos_token_id


def _measured_pooling(submission: Submission, row_bytes: int) -> _Measured:
    if submission.output_token_ids:
        raise InvalidRequest("A pooling request has no output tokens.", field="resumed_output_token_ids")
    return _Measured(submission.payload, NO_LOGPROBS, _pooling_sizes(submission, row_bytes))


def _pooling_sizes(submission: Submission, row_bytes: int) -> MessageSizes:
    # The answer of a task that pools whole sequences is as small as a few tokens.
    answer_bytes = row_bytes * len(submission.prompt_token_ids) if submission.pools_tokens else 0
    return MessageSizes(params_bytes=_POOLING_BYTES, answer_bytes=answer_bytes)


def _names_bytes(submission: Submission) -> int:
    """Return the bytes of the names and headers of a request in a plan, and of the fields around them."""
    texts = [submission.request_id, *submission.context.headers().values()]
    if submission.lora is not None:
        texts += [submission.lora.name, submission.lora.path]
    embeds, media = submission.payload.prompt_embeds, submission.payload.media
    media_bytes = sum(_SPAN_BYTES + span.size_bytes for span in media)
    return (
        _FIELDS_BYTES
        + sum(len(text.encode()) for text in texts)
        + (embeds.size_bytes if embeds is not None else 0)
        + media_bytes
    )
