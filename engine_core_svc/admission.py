"""Admission: what a submission must satisfy before the scheduler sees it, and the Request it becomes.

Frontends check the same limits earlier and with more context; this is the last line for any client of the contract.
"""

import itertools
import time
from dataclasses import dataclass
from typing import Literal

from tetrad.engine_core_svc.request import Request, RequestStatus
from tetrad.engine_core_svc.sampling_wire import check_sampling
from tetrad.engine_core_svc.wire import Submission
from tetrad.services.errors import InvalidRequest, PromptTooLong


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What a request may ask for.

    Attributes:
        max_model_len: prompt plus output, in tokens.
        vocab_size: ids are smaller.
        priority_order: whether larger or smaller priorities are more urgent to the clients.
    """

    max_model_len: int
    vocab_size: int
    priority_order: Literal["high_first", "low_first"] = "high_first"


class Admission:
    """Turns submissions into requests, numbering them in order of arrival."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._keys = itertools.count(1)

    def accept(self, submission: Submission, session_key: int) -> Request:
        """Return the request; InvalidRequest or PromptTooLong, naming value and limit, if it cannot run."""
        self._check(submission)
        num_prompt_tokens = len(submission.prompt_token_ids)
        max_tokens = submission.stop.max_tokens
        limit = self._limits.max_model_len
        key = next(self._keys)
        sign = 1 if self._limits.priority_order == "high_first" else -1
        return Request(
            key=key,
            request_id=submission.request_id,
            token_ids=submission.prompt_token_ids + submission.output_token_ids,
            num_prompt_tokens=num_prompt_tokens,
            max_total_tokens=limit if max_tokens is None else min(limit, num_prompt_tokens + max_tokens),
            stop=submission.stop,
            session_key=session_key,
            handle=submission.handle,
            priority=sign * submission.priority,
            arrival_time=submission.arrival_time,
            sequence_number=key,
            cache_salt=submission.cache_salt,
            skip_reading_prefix_cache=submission.skip_reading_prefix_cache,
            payload=submission.payload,
            status=RequestStatus.WAITING if submission.constraint is None else RequestStatus.WAITING_FOR_GRAMMAR,
            queued_at=time.monotonic(),
            context=submission.context,
        )

    def _check(self, submission: Submission) -> None:
        prompt, output, limits = submission.prompt_token_ids, submission.output_token_ids, self._limits
        if not submission.request_id:
            raise InvalidRequest("request_id must not be empty.", field="request_id")
        if not prompt:
            raise InvalidRequest("The decoder prompt cannot be empty.", field="prompt_token_ids")
        if len(prompt) >= limits.max_model_len:
            raise PromptTooLong(
                f"The decoder prompt (length {len(prompt)}) plus the number of requested output tokens (at least 1) is longer "
                f"than the maximum model length of {limits.max_model_len}. Shorten the prompt.",
                field="prompt_token_ids",
            )
        largest = max(prompt + output)
        if largest >= limits.vocab_size:
            raise InvalidRequest(
                f"Token id {largest} is out of vocabulary. Vocabulary size: {limits.vocab_size}.", field="prompt_token_ids"
            )
        payload = submission.payload
        check_sampling(payload.sampling_params, eos_token_id=payload.eos_token_id, vocab_size=limits.vocab_size)
        max_tokens = submission.stop.max_tokens
        if max_tokens is not None and max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, got {max_tokens}.", field="max_tokens")
        room = limits.max_model_len if max_tokens is None else min(limits.max_model_len, len(prompt) + max_tokens)
        if len(prompt) + len(output) >= room:
            raise InvalidRequest(
                f"{len(output)} resumed output tokens leave nothing to generate: prompt and output may have {room} tokens.",
                field="resumed_output_token_ids",
            )
