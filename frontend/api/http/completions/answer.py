"""CompletionAnswer: answers one request of /v1/completions, streamed or whole.

Called by the router. Adds the prompts to AsyncLLM, and converts the outputs to choices.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial

from msgspec import UNSET
from starlette.responses import Response

from tetrad.frontend.api.http.completions.bodies import CompletionRequest, completion_params
from tetrad.frontend.api.http.schemas.large_parts import LargeParts
from tetrad.frontend.api.http.schemas.logprobs import completion_logprobs, num_chars, prompt_logprobs_json
from tetrad.frontend.api.http.schemas.objects import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprobs,
    UsageCount,
    event,
    kv_transfer_params_of,
)
from tetrad.frontend.api.http.sse.rendering import json_event, json_response, rendered
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.output_stream import OutputStream, merged
from tetrad.frontend.net.side_thread import in_side_thread
from tetrad.frontend.request.admission import Ticket
from tetrad.frontend.request.kv_transfer import KV_TRANSFER_PARAMS, KvTransfer
from tetrad.frontend.request.logprobs import PARTIAL, drop_candidates, num_candidates
from tetrad.frontend.request.outputs import CompletionOutput, PositionLogprobs, PromptPositions, RequestOutput
from tetrad.frontend.request.prompts import PromptType, estimated_prompt_tokens
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest
from tetrad.services.timers.time_slice import TimeSlice

_ADDED_TOGETHER = 8
"""Number of prompts of one request that are prepared before other requests run on the event loop: about 1.5 ms."""


class CompletionAnswer:
    """One request of /v1/completions."""

    def __init__(
        self, llm: AsyncLLM, body: CompletionRequest, request_id: str, prompts: Sequence[PromptType], rank: int | None
    ) -> None:
        self._llm = llm
        self._body = body
        self._id = f"cmpl-{request_id}"
        self._rank = rank
        self._created = int(time.time())
        self._model = llm.model_names.resolve(body.model)
        self._prompts = prompts
        self._transfer = KvTransfer.of(body.kv_transfer_params)
        if self._transfer is not None and len(prompts) != 1:
            text = f"{KV_TRANSFER_PARAMS} needs a single prompt, got {len(prompts)}."
            raise InvalidRequest(text, field=KV_TRANSFER_PARAMS)
        # To score a prompt one token is generated, because this returns the prompt's log-probabilities; it is not returned.
        self._num_shown = body.n or 1
        self._only_prompt = bool(body.echo) and body.max_tokens == 0
        # Number of log-probabilities to return for each token; None: no log-probabilities.
        self._num_top = len(body.logprob_token_ids) if body.logprob_token_ids else body.logprobs
        if self._num_top == -1:
            self._num_top = llm.engine_info.vocab_size
        self._params = self._sampling_params()
        self._usage = UsageCount()
        self._parts = LargeParts()
        self._num_logprobs = 0
        self._shown_chars: dict[int, int] = {}
        self._prompt_positions: dict[int, PromptPositions] = {}

    async def answer(self) -> Response:
        """Return the whole completion as a response."""
        completion = await self.run()
        return await json_response(completion, self._parts, self._num_logprobs)

    async def run(self) -> Completion:
        """Return the whole completion."""
        whole = Completion(self._id, "text_completion", self._created, self._model, [])
        choices: list[CompletionChoice] = []
        async for outputs in await self._outputs():
            time_slice = TimeSlice()
            for place, output in outputs:
                self._count(place, output)
                shown = _best(output.outputs, self._num_shown) if self._body.best_of else output.outputs
                for each in shown:
                    choices.append(await self._whole_choice(place, output, each))
                    await self._drop(each.logprobs)
                    await time_slice.check()
                await self._drop(output.prompt_logprobs)
                whole.kv_transfer_params = kv_transfer_params_of(output)
        whole.choices, whole.usage = sorted(choices, key=lambda choice: choice.index), self._usage.usage()
        whole.metrics = self._usage.metrics()
        return whole

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the completion as events."""
        options = self._body.stream_options
        with_usage = options is not None and options.include_usage
        always = options is not None and with_usage and options.continuous_usage_stats
        chunk = Completion(self._id, "text_completion", self._created, self._model, [])
        if with_usage:
            chunk.usage = None
        async for outputs in await self._outputs():
            pieces, time_slice = [], TimeSlice()
            for place, output in outputs:
                self._count(place, output)
                self._keep_prompt_logprobs(place, output)
                for each in output.outputs:
                    await time_slice.check()
                    choice = await self._next_choice(place, output, each)
                    if choice is None:
                        continue
                    chunk.choices, chunk.kv_transfer_params = [choice], kv_transfer_params_of(output)
                    if always:
                        chunk.usage = self._usage.usage()
                    await self._drop(each.logprobs)
                    pieces.append(await json_event(chunk, self._parts, self._num_logprobs))
                    self._num_logprobs = 0
            if pieces:
                yield b"".join(pieces)
        if with_usage:
            chunk.choices, chunk.usage, chunk.kv_transfer_params = [], self._usage.usage(), UNSET
            chunk.metrics = self._usage.metrics()
            yield event(chunk)

    async def _outputs(self) -> AsyncIterator[list[tuple[int, RequestOutput]]]:
        """Return the outputs, each with the index of its prompt, in lists of those that arrive together."""
        return merged(await self._start())

    async def _start(self) -> list[OutputStream]:
        if len(self._prompts) == 1:
            return [await self._add(self._id, self._prompts[0])]
        # All prompts are admitted, or none: none is tokenized without use, and a call without others is never refused midway.
        tickets = self._llm.admission.admit_all(self._params.n, [estimated_prompt_tokens(each) for each in self._prompts])
        admitted = list(zip(self._prompts, tickets, strict=True))
        streams: list[OutputStream] = []
        try:
            for start in range(0, len(admitted), _ADDED_TOGETHER):
                began = time.perf_counter()
                streams += await self._add_together(start, admitted[start : start + _ADDED_TOGETHER])
                if self._llm.num_unfinished_requests > len(streams):
                    await asyncio.sleep(time.perf_counter() - began)  # leave half of the time to the requests of others
        except BaseException:
            for each in streams:
                each.close()
            for ticket in tickets:
                ticket.release()
            raise
        return streams

    async def _add_together(self, start: int, admitted: Sequence[tuple[PromptType, Ticket]]) -> list[OutputStream]:
        """Add some of the prompts, starting with index `start`: all of them or, after an error, none."""
        # The tokenizer receives these prompts in one message.
        adding = [
            asyncio.create_task(self._add(f"{self._id}-{place}", prompt, ticket))
            for place, (prompt, ticket) in enumerate(admitted, start)
        ]
        try:
            return list(await asyncio.gather(*adding))
        except BaseException:
            for each in adding:
                each.cancel()
            for added in await asyncio.gather(*adding, return_exceptions=True):
                if isinstance(added, OutputStream):
                    added.close()
            raise

    async def _add(self, request_id: str, prompt: PromptType, ticket: Ticket | None = None) -> OutputStream:
        body = self._body
        return await self._llm.add_request(
            request_id,
            prompt,
            self._params,
            priority=body.priority,
            add_special_tokens=body.add_special_tokens,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            truncation_side=body.truncation_side or "left",
            cache_salt=body.cache_salt or "",
            data_parallel_rank=self._rank,
            lora_request=self._llm.model_names.lora_of(self._model),
            ticket=ticket,
            kv_transfer=self._transfer,
        )

    def _sampling_params(self) -> SamplingParams:
        body = self._body
        defaults = self._llm.default_sampling_fields()
        params = completion_params(body, defaults, max_tokens=1 if self._only_prompt else body.max_tokens)
        if body.best_of is not None and body.best_of > params.n:
            if body.best_of > (most := self._llm.settings.max_n):
                raise InvalidRequest(f"best_of must be at most {most}, got {body.best_of}.", field="best_of")
            params.n = body.best_of
            # Ranking needs the sampled tokens' log-probabilities, even if they are not returned.
            params.logprobs = params.logprobs or 0
        if body.echo and self._num_top is not None and params.prompt_logprobs is None:
            params.prompt_logprobs = body.logprobs or 0
        return params

    def _count(self, place: int, output: RequestOutput) -> None:
        self._usage.add(place, output, num_tokens=0 if self._only_prompt else None)

    def _keep_prompt_logprobs(self, place: int, output: RequestOutput) -> None:
        """Give each output of a stream the prompt's log-probabilities: only the first output of a request has them."""
        if self._num_shown > 1 and output.prompt_logprobs is not None:
            self._prompt_positions[place] = output.prompt_logprobs
        output.prompt_logprobs = output.prompt_logprobs or self._prompt_positions.get(place)

    async def _next_choice(self, place: int, output: RequestOutput, new: CompletionOutput) -> CompletionChoice | None:
        """Return a choice with the new part of an output; None if nothing is new."""
        index = place * self._num_shown + new.index
        if index not in self._shown_chars and (self._body.echo or self._body.return_token_ids):
            choice = await self._whole_choice(place, output, new)
            self._shown_chars[index] = len(choice.text) - len(new.text) + _num_chars(new)
            return choice
        if not (new.text or new.finish_reason or self._body.return_token_ids or new.logprobs):
            return None
        start = self._shown_chars.get(index, 0)
        self._shown_chars[index] = start + _num_chars(new)
        if self._only_prompt:
            return None
        choice = CompletionChoice(
            index, new.text, await self._logprobs(new.token_ids, new.logprobs, start), new.finish_reason, new.stop_reason
        )
        if self._body.return_token_ids:
            choice.token_ids = new.token_ids
        return choice

    async def _whole_choice(self, place: int, output: RequestOutput, new: CompletionOutput) -> CompletionChoice:
        """Return an output as a choice, with its prompt if the request has `echo`."""
        body = self._body
        text, ids, positions = new.text, new.token_ids, new.logprobs
        if self._only_prompt:
            text, ids, positions = "", [], [] if positions is not None else None
        all_ids: list[int] = ids
        all_positions: Sequence[PositionLogprobs | None] | None = None if positions is None else list(positions)
        if body.echo:
            text = await self._prompt_text(output) + text
            all_ids = output.prompt_token_ids + ids
            if all_positions is not None and output.prompt_logprobs is not None:
                all_positions = [*output.prompt_logprobs, *all_positions]
            elif all_positions is not None:
                all_ids = ids
        first_text, start = "", 0
        if all_positions and all_positions[0] is None:
            # A part of a character has no text: the character belongs to the token that completes it.
            first_text = (await self._llm.texts.detokenize(all_ids[:1], skip_special_tokens=False)).rstrip(PARTIAL)
            # BOS, which the tokenizer puts before a text, has a name that the text lacks.
            start = 0 if text.startswith(first_text) else -len(first_text)
        choice = CompletionChoice(
            index=place * self._num_shown + new.index,
            text=text,
            logprobs=await self._logprobs(all_ids, all_positions, start, first_text),
            finish_reason="length" if self._only_prompt else new.finish_reason,
            stop_reason=new.stop_reason,
        )
        if body.return_token_ids:
            choice.token_ids, choice.prompt_token_ids = ids, output.prompt_token_ids
        if body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            choice.prompt_logprobs = await self._prompt_logprobs(output.prompt_logprobs)
        return choice

    async def _logprobs(
        self,
        ids: list[int],
        positions: Sequence[PositionLogprobs | None] | None,
        start: int,
        first_text: str = "",
    ) -> CompletionLogprobs | None:
        if positions is None or self._num_top is None:
            return None
        num_logprobs = len(ids) * self._num_top
        self._num_logprobs += num_logprobs
        render = partial(
            completion_logprobs,
            ids,
            positions,
            self._num_top,
            start=start,
            first_text=first_text,
            as_ids=bool(self._body.return_tokens_as_token_ids),
            parts=self._parts,
        )
        return await rendered(num_logprobs, render)

    async def _drop(self, positions: Sequence[PositionLogprobs | None] | None) -> None:
        """Free the candidates of positions that have been written."""
        if positions is not None and self._parts:
            await in_side_thread(partial(drop_candidates, positions))

    async def _prompt_logprobs(self, positions: Sequence[PositionLogprobs | None]) -> PromptLogprobs:
        num_logprobs = num_candidates(positions)
        self._num_logprobs += num_logprobs
        return await rendered(num_logprobs, partial(prompt_logprobs_json, positions, self._parts))

    async def _prompt_text(self, output: RequestOutput) -> str:
        # The model has read only a part of a truncated text.
        if output.prompt is not None and self._body.truncate_prompt_tokens is None:
            return output.prompt
        return await self._llm.texts.detokenize(output.prompt_token_ids, skip_special_tokens=self._params.skip_special_tokens)


def _num_chars(new: CompletionOutput) -> int:
    """Return the number of characters of new tokens. Tokens may be returned before their text, which may be held back."""
    return len(new.text) if new.logprobs is None else num_chars(new.token_ids, new.logprobs)


def _best(outputs: Sequence[CompletionOutput], number: int) -> list[CompletionOutput]:
    """Return the outputs with the highest log-probability per token, best first, with new indices."""

    def per_token(output: CompletionOutput) -> float:
        return (output.cumulative_logprob or 0.0) / max(len(output.token_ids), 1)

    ranked = sorted(outputs, key=per_token, reverse=True)[:number]
    return [replace(output, index=index) for index, output in enumerate(ranked)]
