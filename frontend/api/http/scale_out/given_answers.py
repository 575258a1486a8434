"""Given answers: converts answers of /inference/v1/generate, which a client sends to derender, to outputs of a request."""

from collections.abc import AsyncIterator

from tetrad.frontend.api.http.scale_out.derender_bodies import GivenAnswer, GivenChoice
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.net.together import all_of
from tetrad.frontend.request.logprobs import texts_in_context
from tetrad.frontend.request.outputs import CompletionOutput, Logprob, PositionLogprobs, RequestOutput
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest, PromptTooLong

_CONTEXT_TOKENS = 8
"""Number of prompt tokens that determine whether the output's first token starts with a space."""


class GivenTexts:
    """Decodes the token ids of given answers.

    Args:
        llm: the LLM whose tokenizer decodes them.
        params: the request's parameters: its stop strings, and whether special tokens are skipped.
        field: the body's field with the answers, for errors.
    """

    def __init__(self, llm: AsyncLLM, params: SamplingParams, field: str) -> None:
        self._llm, self._params, self._field = llm, params, field

    async def output(self, answer: GivenAnswer, prompt: TokensPrompt) -> RequestOutput:
        """Return an answer as the final output of its request; InvalidRequest for an invalid answer."""
        self._check(answer)
        ids = prompt["prompt_token_ids"]
        outputs = await all_of(self._choice(choice, ids) for choice in answer.choices)
        return RequestOutput(answer.request_id, prompt.get("prompt"), ids, None, outputs, finished=True)

    def _check(self, answer: GivenAnswer) -> None:
        most, limit = self._llm.settings.max_n, self._llm.max_model_len
        if len(answer.choices) > most:
            text = f"An answer may have at most {most} choices, got {len(answer.choices)}."
            raise InvalidRequest(text, field=self._field)
        longest = max(len(choice.token_ids) for choice in answer.choices)
        if longest > limit:
            text = f"This model's maximum context length is {limit} tokens; a choice has {longest} token_ids."
            raise PromptTooLong(text, field=self._field)
        if len({choice.index for choice in answer.choices}) < len(answer.choices):
            raise InvalidRequest("The choices of an answer must have different indexes.", field=self._field)

    async def _choice(self, choice: GivenChoice, prompt_ids: list[int]) -> CompletionOutput:
        text = await self._text(choice, prompt_ids)
        positions = await self._positions(choice)
        return CompletionOutput(
            choice.index,
            text,
            choice.token_ids,
            logprobs=positions,
            finish_reason=choice.finish_reason or "stop",
            stop_reason=choice.stop_reason,
        )

    async def _text(self, choice: GivenChoice, prompt_ids: list[int]) -> str:
        # Repetition detection gives a reason that is no stop string.
        ids, stop = choice.token_ids, None if choice.finish_reason == "repetition" else choice.stop_reason
        has_stop = self._params.include_stop_str_in_output
        if not ids:
            return ""
        if choice.finish_reason == "stop" and not has_stop and not isinstance(stop, str) and self._ends(ids[-1], stop):
            return await self._decoded(ids[:-1], prompt_ids)
        text = await self._decoded(ids, prompt_ids)
        if not isinstance(stop, str) or not stop:
            return text
        # The last token completed the stop string.
        before = await self._decoded(ids[:-1], prompt_ids)
        place = text.find(stop, max(len(before) - len(stop) + 1, 0))
        if place < 0:
            return text
        return text[: place + len(stop)] if has_stop else text[:place]

    def _ends(self, token_id: int, stop: int | None) -> bool:
        """Return whether the last token ended the output."""
        return token_id == stop or (stop is None and token_id in self._llm.tokenizer_info.eos_token_ids)

    async def _decoded(self, ids: list[int], prompt_ids: list[int]) -> str:
        context = prompt_ids[-_CONTEXT_TOKENS:]
        if not context or not ids:
            return await self._decode(ids)
        before, whole = await all_of((self._decode(context), self._decode(context + ids)))
        return whole[len(before) :] if whole.startswith(before) else await self._decode(ids)

    async def _decode(self, ids: list[int], *, skip_special_tokens: bool | None = None) -> str:
        skip = self._params.skip_special_tokens if skip_special_tokens is None else skip_special_tokens
        try:
            return await self._llm.texts.detokenize(ids, skip_special_tokens=skip)
        except InvalidRequest as error:
            error.field = self._field  # the name of the field with the ids in this API
            raise

    async def _positions(self, choice: GivenChoice) -> list[PositionLogprobs] | None:
        content = None if choice.logprobs is None else choice.logprobs.content
        if content is None:
            return None
        names = {each.token_id for position in content for each in (position, *position.top_logprobs)}
        own = await self._llm.texts.token_texts(names)
        texts = await texts_in_context(choice.token_ids, own.get, self._decode_all)
        positions: list[PositionLogprobs] = []
        for given, text in zip(content, texts, strict=True):
            position = {given.token_id: Logprob(given.logprob, given.rank, text)}
            for each in given.top_logprobs:
                position.setdefault(each.token_id, Logprob(each.logprob, each.rank, own[each.token_id]))
            positions.append(position)
        return positions

    async def _decode_all(self, sequences: list[list[int]]) -> list[str]:
        return await all_of(self._decode(ids, skip_special_tokens=False) for ids in sequences)


class GivenOutputs:
    """Presents an existing final output as a stream, for code that reads the outputs of requests.

    Args:
        output: the complete output.
    """

    def __init__(self, output: RequestOutput) -> None:
        self._output = output
        self.predicted_ids: list[int] = []

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's ids; empty if unknown."""
        return self._output.prompt_token_ids

    @property
    def prompt(self) -> str | None:
        """The prompt's text, if known."""
        return self._output.prompt

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        yield self._output

    def close(self) -> None:
        """Do nothing: no request is running."""
