"""Given stream: replays a stream that a client sends chunk by chunk, and makes the state for the next chunk.

Nothing is kept between two chunks: the client sends the earlier tokens in its state.
"""

from collections.abc import AsyncIterator

from tetrad.frontend.api.http.scale_out.derender_bodies import GivenLogprobs
from tetrad.frontend.api.http.scale_out.derender_stream_bodies import (
    CONTEXT_TOKENS,
    DerenderChatChunkRequest,
    DerenderCompletionChunkRequest,
    GivenChunkChoice,
    GivenStateChoice,
)
from tetrad.frontend.api.http.scale_out.derender_stream_objects import StateChoice, StreamState
from tetrad.frontend.api.http.schemas.objects import CompletionTokensDetails, PromptTokensDetails, Usage
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.replays import Part
from tetrad.frontend.net.together import all_of
from tetrad.frontend.request.deadlines import earliest_deadline, within
from tetrad.frontend.request.outputs import CompletionOutput, RequestOutput
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.steps import LogprobRows
from tetrad.services.errors import InvalidRequest, PromptTooLong

_CHUNK, _STATE = "generate_chunk", "stream_state"


class GivenStream:
    """The outputs of a stream up to a chunk; an output stream that can be read as that of a request.

    Args:
        llm: decodes the tokens.
        body: the chunk and the state of the earlier ones.
        created: Unix seconds, for the state of the first chunk.

    Attributes:
        new: indexes of the choices of the chunk.
        predicted_ids: empty.
    """

    def __init__(self, llm: AsyncLLM, body: DerenderChatChunkRequest | DerenderCompletionChunkRequest, created: int) -> None:
        self._llm, self._body = llm, body
        self._state, self._chunk = body.stream_state, body.generate_chunk
        self.created = created if self._state is None else self._state.created
        self.new = {choice.index for choice in self._chunk.choices}
        self.predicted_ids: list[int] = []
        self._prompt = TokensPrompt(prompt_token_ids=[])
        self._outputs: dict[int, list[CompletionOutput]] = {}
        self._check()

    @property
    def is_first(self) -> bool:
        """Whether this is the first chunk."""
        return self._state is None

    @property
    def given_prompt_ids(self) -> list[int] | None:
        """The ids of the prompt, if the body has them."""
        return self._body.prompt_token_ids or self._chunk.prompt_token_ids

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's ids; empty if unknown."""
        return self._prompt["prompt_token_ids"]

    @property
    def prompt(self) -> str | None:
        """The prompt's text, if known."""
        return self._prompt.get("prompt")

    @property
    def num_top(self) -> int:
        """The maximum number of candidates of a token in the chunk."""
        given = (choice.logprobs for choice in self._chunk.choices)
        positions = [position for each in given if each is not None for position in each.content or ()]
        return max((len(position.top_logprobs) for position in positions), default=0)

    def began(self, index: int) -> bool:
        """Return whether an earlier chunk had tokens of a choice."""
        return any(each.index == index for each in self._earlier)

    @property
    def _earlier(self) -> list[GivenStateChoice]:
        return [] if self._state is None else self._state.choices

    @property
    def _context(self) -> list[int]:
        return self.prompt_token_ids[-CONTEXT_TOKENS:] if self._state is None else self._state.context_token_ids

    async def replay(self, prompt: TokensPrompt, params: SamplingParams) -> None:
        """Decode the tokens of the chunk's choices; for usage, those of all.

        Raises:
            InvalidRequest: a choice has ended before, or ends with a stop string that the request does not have.
            DeadlineExceeded: the deadline of the call passed.
        """
        self._prompt = prompt
        earlier = {each.index: each for each in self._earlier}
        wanted = self.new if self._chunk.usage is None else self.new | earlier.keys()
        choices = {choice.index: choice for choice in self._chunk.choices}
        for choice in choices.values():
            # Repetition detection gives a reason that is no stop string.
            ended_by = choice.stop_reason if choice.finish_reason == "stop" else None
            if isinstance(ended_by, str) and ended_by not in params.stops:
                text = f"The stop string {ended_by[:64]!r} ended a choice: send the request with its `stop`."
                raise InvalidRequest(text, field=_CHUNK)
        indexes = sorted(wanted)
        async with within(earliest_deadline(None)):
            found = await all_of(self._replayed(i, earlier.get(i), choices.get(i), params) for i in indexes)
        self._outputs = dict(zip(indexes, found, strict=True))

    async def _replayed(
        self, index: int, earlier: GivenStateChoice | None, choice: GivenChunkChoice | None, params: SamplingParams
    ) -> list[CompletionOutput]:
        parts = [] if earlier is None else _earlier_parts(earlier)
        if choice is not None:
            rows = _logprob_rows(choice.logprobs)
            parts.append(Part(choice.token_ids or [], choice.finish_reason, choice.stop_reason, rows))
        replays, eos = self._llm.backends.replays, self._llm.tokenizer_info.eos_token_ids
        try:
            return await replays.outputs(index, parts, params, self._context, frozenset(eos))
        except InvalidRequest as error:
            error.field = _CHUNK
            raise

    def earlier(self, index: int) -> list[CompletionOutput]:
        """Return the outputs of a choice of the chunk that earlier chunks had."""
        return self._outputs[index][:-1]

    def output(self, index: int) -> CompletionOutput:
        """Return the new output of a choice of the chunk."""
        return self._outputs[index][-1]

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        for outputs in self._outputs.values():
            for each in outputs:
                yield self.request_output(each)

    def request_output(self, output: CompletionOutput) -> RequestOutput:
        """Return an output as an output of the request."""
        return RequestOutput(self._chunk.request_id, self.prompt, self.prompt_token_ids, None, [output], finished=False)

    def close(self) -> None:
        """Do nothing: no request is running."""

    def state(self) -> StreamState:
        """Return the state for the next chunk."""
        choices = {each.index: _state_choice(each) for each in self._earlier}
        for index in sorted(self.new):
            ids = self.output(index).token_ids
            choice = choices.setdefault(index, StateChoice(index, [], []))
            choice.output_token_ids = choice.output_token_ids + ids
            choice.finish_reason, choice.stop_reason = self.output(index).finish_reason, self.output(index).stop_reason
            if ids or choice.finish_reason is not None:
                choice.output_chunk_lens = [*choice.output_chunk_lens, len(ids)]
        return StreamState(self._chunk.request_id, self.created, self._context, list(choices.values()))

    def usage(self, details: CompletionTokensDetails | None) -> Usage | None:
        """Return the usage that the chunk has, with the details of the completion; None if it has none."""
        given = self._chunk.usage
        if given is None:
            return None
        prompt = given.prompt_tokens if self._body.prompt_tokens is None else self._body.prompt_tokens
        completion, parts = given.completion_tokens or 0, given.prompt_tokens_details
        cached = PromptTokensDetails(0 if parts is None else parts.cached_tokens or 0)
        return Usage(prompt, completion, prompt + completion, cached, details)

    def _check(self) -> None:
        choices, earlier = self._chunk.choices, self._earlier
        if len(self.new) < len(choices):
            raise InvalidRequest("The choices of a chunk must have different indexes.", field=_CHUNK)
        if len({each.index for each in earlier}) < len(earlier):
            raise InvalidRequest("The choices of stream_state must have different indexes.", field=f"{_STATE}.choices")
        most, limit = self._llm.settings.max_n, self._llm.max_model_len
        number = len(self.new.union(each.index for each in earlier))
        if number > most:
            raise InvalidRequest(f"A stream may have at most {most} choices, got {number}.", field=_CHUNK)
        counts = {each.index: len(each.output_token_ids) for each in earlier}
        for choice in choices:
            counts[choice.index] = counts.get(choice.index, 0) + len(choice.token_ids or [])
        longest = max(counts.values(), default=0)
        if longest > limit:
            text = f"This model's maximum context length is {limit} tokens; a choice has {longest} tokens."
            raise PromptTooLong(text, field=_CHUNK)
        longest = max((len(each.output_chunk_lens) for each in earlier), default=0)
        if longest > limit + 1:
            text = f"stream_state may have at most {limit + 1} chunks of a choice, got {longest}."
            raise InvalidRequest(text, field=f"{_STATE}.choices.output_chunk_lens")
        for each in earlier:
            self._llm.texts.check_ids(each.output_token_ids, f"{_STATE}.choices.output_token_ids")
        self._llm.texts.check_ids([] if self._state is None else self._state.context_token_ids, f"{_STATE}.context_token_ids")
        self._llm.texts.check_ids(self.given_prompt_ids or [], "prompt_token_ids")
        for choice in choices:
            self._llm.texts.check_ids(choice.token_ids or [], _CHUNK)
            self._llm.texts.check_ids([i for rows in _logprob_rows(choice.logprobs) or () for i in rows.token_ids], _CHUNK)


def _earlier_parts(earlier: GivenStateChoice) -> list[Part]:
    parts, start = [], 0
    for number in earlier.output_chunk_lens:
        parts.append(Part(earlier.output_token_ids[start : start + number]))
        start += number
    if parts and earlier.finish_reason is not None:
        parts[-1] = Part(parts[-1].token_ids, earlier.finish_reason, earlier.stop_reason)
    return parts


def _state_choice(given: GivenStateChoice) -> StateChoice:
    return StateChoice(given.index, given.output_token_ids, given.output_chunk_lens, given.finish_reason, given.stop_reason)


def _logprob_rows(given: GivenLogprobs | None) -> list[LogprobRows] | None:
    if given is None or given.content is None:
        return None
    found = []
    for position in given.content:
        others = [each for each in position.top_logprobs if each.token_id != position.token_id]
        candidates = [position, *others]
        ids, values = [each.token_id for each in candidates], [each.logprob for each in candidates]
        found.append(LogprobRows(ids, values, [position.rank or 1], len(candidates)))
    return found
