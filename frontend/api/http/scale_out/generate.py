"""/inference/v1/generate: continues one prompt of token ids with n outputs, streamed or whole; also aborts such requests."""

import asyncio
import base64
import io
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented, stream_of_chunks
from tetrad.frontend.api.http.documentation.schemas import either, struct_schema
from tetrad.frontend.api.http.requests.body import read_body, read_prompt_body
from tetrad.frontend.api.http.requests.named import data_parallel_rank_of, llm_of, models_of, request_id_of
from tetrad.frontend.api.http.scale_out.bodies import AbortRequest, TokensRequest
from tetrad.frontend.api.http.scale_out.objects import (
    TextAnswer,
    TextChoice,
    TextChunk,
    TokensAnswer,
    TokensChoice,
    TokensChunk,
    id_logprobs,
)
from tetrad.frontend.api.http.scale_out.sampling_json import params_of
from tetrad.frontend.api.http.schemas.large_parts import LargeParts
from tetrad.frontend.api.http.schemas.logprobs import chat_logprobs
from tetrad.frontend.api.http.schemas.objects import UsageCount, event, kv_transfer_params_of
from tetrad.frontend.api.http.sse.rendering import json_event, json_response, rendered, rendered_prompt_logprobs
from tetrad.frontend.api.http.sse.streams import stream_response, until_disconnected
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.constraint_start import behind_reasoning
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.request.kv_transfer import KvTransfer
from tetrad.frontend.request.logprobs import drop_candidates
from tetrad.frontend.request.outputs import CompletionOutput
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest

router = APIRouter()

_PREFIX = "generate-tokens-"
_CHOICE = {"index": 0, "finish_reason": "stop", "stop_reason": None, "token_ids": [7042, 30, 2], "logprobs": None}
_EXAMPLE = {
    "request_id": "generate-tokens-9f2d",
    "model": "smollm2-135m-instruct",
    "created": 1767225600,
    "usage": {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    },
    "output_mode": "tokens",
    "choices": [_CHOICE],
    "prompt_logprobs": None,
    "prompt_token_ids": None,
}
_ANSWER = either(tokens=struct_schema(TokensAnswer), text=struct_schema(TextAnswer))
_STREAM = stream_of_chunks(either(tokens=struct_schema(TokensChunk), text=struct_schema(TextChunk)))


@dataclass(frozen=True)
class _Form:
    """The constructors of the objects of one output mode."""

    answer: Callable[..., Any]
    chunk: Callable[..., Any]
    choice: Callable[..., Any]
    logprobs: Callable[..., Any]


_FORMS = {
    "tokens": _Form(TokensAnswer, TokensChunk, TokensChoice, id_logprobs),
    "text": _Form(TextAnswer, TextChunk, TextChoice, chat_logprobs),
}


@router.post(
    "/inference/v1/generate",
    **documented(TokensRequest, answer=_ANSWER, example=_EXAMPLE, events=_STREAM, tag="tokens"),
)
async def generate(request: Request) -> Response:
    """Generate from a prompt of token ids, such as /v1/completions/render and /v1/chat/completions/render return."""
    body = await read_prompt_body(request, TokensRequest)
    llm = llm_of(request, body.model)
    job = _Generation(llm, body, request_id_of(request, body.request_id), data_parallel_rank_of(request))
    if body.stream:
        return stream_response(request, job.stream())
    return await until_disconnected(request.receive, job.answer())


@router.post("/inference/v1/abort_requests", **documented(AbortRequest, text="", tag="tokens"))
async def abort_requests(request: Request) -> Response:
    """Abort requests of /inference/v1/generate; their finish_reason is abort."""
    body = await read_body(request, AbortRequest)
    own = [each for each in body.request_ids if each.startswith(_PREFIX)]
    for llm in models_of(request):
        await llm.abort(own)
    return Response()


def _npy_of(scores: Any) -> str:
    """Return an array as an .npy file in base64."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, scores)
    return base64.b64encode(file.getvalue()).decode()


class _Generation:
    """One request to /inference/v1/generate."""

    def __init__(self, llm: AsyncLLM, body: TokensRequest, request_id: str, rank: int | None) -> None:
        self._llm = llm
        self._body = body
        self._id = _PREFIX + request_id
        self._rank = rank
        self._created = int(time.time())
        self._model = llm.model_names.resolve(body.model)
        self._as_text = body.output_mode == "text"
        self._form = _FORMS[body.output_mode]
        self._params = params_of(body.sampling_params, stream=bool(body.stream), as_text=self._as_text)
        listed = self._params.logprob_token_ids
        # With logprob_token_ids, all of these and the sampled token are returned.
        self._num_top = len(listed) + 1 if listed else max(self._params.logprobs or 0, 1)
        if self._params.logprobs == -1:
            self._num_top = llm.engine_info.vocab_size
        self._usage = UsageCount()
        self._parts = LargeParts()

    async def answer(self) -> Response:
        """Return the whole answer as a response."""
        num_logprobs = 0
        result = self._form.answer(
            request_id=self._id, model=self._model, created=self._created, usage=self._usage.usage(), choices=[]
        )
        with closing(await self._start()) as outputs:
            async for output in outputs:
                self._usage.add(0, output)
                for each in output.outputs:
                    num_logprobs += self._num_logprobs(each)
                    result.choices.append(await rendered(self._num_logprobs(each), partial(self._choice, each)))
                if self._body.return_token_ids:
                    result.prompt_token_ids = output.prompt_token_ids
                if (positions := output.prompt_logprobs) is not None:
                    result.prompt_logprobs, num_prompt = await rendered_prompt_logprobs(positions, self._parts)
                    num_logprobs += num_prompt
                if (scores := output.prompt_token_id_logprobs) is not None:
                    result.prompt_token_id_logprobs = await asyncio.to_thread(_npy_of, scores)
                result.kv_transfer_params = kv_transfer_params_of(output)
        result.choices.sort(key=lambda choice: choice.index)
        result.usage, result.metrics = self._usage.usage(), self._usage.metrics()
        return await json_response(result, self._parts, num_logprobs)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the answer as events, each with one choice."""
        options = self._body.stream_options
        with_usage = options is not None and options.include_usage
        always = options is not None and with_usage and options.continuous_usage_stats
        chunk = self._form.chunk(request_id=self._id, choices=[])
        with closing(await self._start()) as outputs:
            if self._body.return_token_ids:
                chunk.prompt_token_ids = outputs.prompt_token_ids
            async for output in outputs:
                self._usage.add(0, output)
                chunk.kv_transfer_params = kv_transfer_params_of(output)
                if always:
                    chunk.usage = self._usage.usage()
                events = []
                for each in output.outputs:
                    if not (each.token_ids or each.finish_reason or (self._as_text and each.text)):
                        continue
                    num_logprobs = self._num_logprobs(each)
                    chunk.choices = [await rendered(num_logprobs, partial(self._choice, each))]
                    events.append(await json_event(chunk, self._parts, num_logprobs))
                    chunk.prompt_token_ids = UNSET
                if events:
                    yield b"".join(events)
        if with_usage:
            chunk.choices, chunk.usage, chunk.kv_transfer_params = [], self._usage.usage(), UNSET
            chunk.metrics = self._usage.metrics()
            yield event(chunk)

    async def _start(self) -> OutputStream:
        body = self._body
        try:
            prompt, params = await self._read_reasoning(TokensPrompt(prompt_token_ids=body.token_ids))
            return await self._llm.add_request(
                self._id,
                prompt,
                params,
                priority=body.priority,
                cache_salt=body.cache_salt or "",
                data_parallel_rank=self._rank,
                lora_request=self._llm.model_names.lora_of(self._model),
                reasoning_ended=body.reasoning_ended is not False,
                kv_transfer=KvTransfer.of(body.kv_transfer_params),
            )
        except InvalidRequest as error:
            if error.field in ("prompt", "tokens"):
                # The name of the prompt's field in this API.
                error.field = "token_ids"
            raise

    async def _read_reasoning(self, prompt: TokensPrompt) -> tuple[TokensPrompt, SamplingParams]:
        """Return prompt and parameters; if the output may begin with reasoning, the constraint applies only after it."""
        params, formats, ended = self._params, self._llm.chat_formats, self._body.reasoning_ended
        constraint = params.structured_outputs
        if formats.reasoning is None or (constraint is None and params.thinking_token_budget is None):
            return prompt, params
        prompt["prompt"] = text = await self._llm.texts.detokenize(prompt["prompt_token_ids"], skip_special_tokens=False)
        if constraint is None or ended is not None:
            return prompt, params
        return prompt, behind_reasoning(params, constraint, formats, text)

    def _choice(self, output: CompletionOutput) -> Any:
        """Return an output in the requested form."""
        logprobs = None
        if output.logprobs is not None:
            logprobs = self._form.logprobs(output.token_ids, output.logprobs, self._num_top, parts=self._parts)
            drop_candidates(output.logprobs)
        return self._form.choice(
            index=output.index,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            token_ids=output.token_ids,
            logprobs=logprobs,
            **({"text": output.text} if self._as_text else {}),
        )

    def _num_logprobs(self, output: CompletionOutput) -> int:
        return len(output.logprobs or ()) * self._num_top
