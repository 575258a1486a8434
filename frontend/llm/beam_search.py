"""Beam search: the k most likely continuations of a prompt, by steps of one token over AsyncLLM.

Called by the LLM classes. Each step sends one request of one token per beam and extends the beam by its log-probabilities. The
prefix cache holds the earlier tokens, so a step computes only those of the last partial KV block: at most `block_size` tokens
per beam, one with block_size=1. beams.py selects the continuations.
"""

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.beams import Beams, EarlyStopping, FinishedBeam, num_candidates
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.request.outputs import Logprob, LoRARequest, PositionLogprobs
from tetrad.frontend.request.prompts import PromptType, TokensPrompt, normalize_prompt
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.services.errors import InvalidRequest

_MAX_BEAM_WIDTH = 1024
# Any possible context length to this power still fits a float.
_MAX_LENGTH_PENALTY = 50.0


@dataclass
class BeamSearchParams:
    """Parameters of a beam search; vLLM's class of the same name, with transformers' `early_stopping`.

    The score of a beam is transformers' too: the sum of its generated tokens' log-probabilities, divided by their number (the
    EOS included) to the power of `length_penalty`. vLLM counts the prompt's tokens with them.

    Args:
        beam_width: beams to keep, and sequences to return.
        max_tokens: maximum number of tokens to generate.
        ignore_eos: continue after EOS.
        temperature: accepted for compatibility with vLLM. Scores are log-probabilities before temperature, so it has no effect.
        length_penalty: a value above 0 favours long sequences, below 0 short ones.
        include_stop_str_in_output: keep the EOS that ended a sequence in its text. Its tokens have it in any case.
        early_stopping: when to stop once `beam_width` sequences have ended. True: at once; False: when no running beam scores
            better at its present length; "never": when none can score better at any length.

    Raises:
        InvalidRequest: a value out of range.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidRequest(f"{name} must be an integer, got {value!r}.", field=name)
            if value < 1:
                raise InvalidRequest(f"{name} must be at least 1, got {value}.", field=name)
        if self.beam_width > _MAX_BEAM_WIDTH:
            text = f"beam_width must be at most {_MAX_BEAM_WIDTH}, got {self.beam_width}."
            raise InvalidRequest(text, field="beam_width")
        if not 0.0 <= _number("temperature", self.temperature) < math.inf:
            raise InvalidRequest(f"temperature must be non-negative, got {self.temperature}.", field="temperature")
        if not abs(_number("length_penalty", self.length_penalty)) <= _MAX_LENGTH_PENALTY:
            text = f"length_penalty must be in [-{_MAX_LENGTH_PENALTY:g}, {_MAX_LENGTH_PENALTY:g}], got {self.length_penalty}."
            raise InvalidRequest(text, field="length_penalty")
        if not _is_early_stopping(self.early_stopping):
            text = f'early_stopping must be True, False or "never", got {self.early_stopping!r}.'
            raise InvalidRequest(text, field="early_stopping")


@dataclass
class BeamSearchSequence:
    """One sequence that the search found.

    Attributes:
        orig_prompt: the prompt, as ids.
        tokens: the prompt's ids and the generated ones.
        logprobs: for each generated token the candidates at its position, the most likely first.
        cum_logprob: sum of the generated tokens' log-probabilities.
        text: text of the prompt and the generated tokens.
        finish_reason: "stop" for EOS, "length", or "abort".
        stop_reason: the id of the EOS; None otherwise.
        score: the value that sequences are ranked by; see BeamSearchParams.
    """

    orig_prompt: TokensPrompt
    tokens: list[int]
    logprobs: list[PositionLogprobs]
    lora_request: LoRARequest | None = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    score: float = 0.0


@dataclass
class BeamSearchOutput:
    """The result for one prompt: `beam_width` sequences, the best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


async def beam_search(
    llm: AsyncLLM,
    request_id: str,
    prompt: PromptType,
    params: BeamSearchParams,
    *,
    lora_request: LoRARequest | None = None,
    priority: int = 0,
) -> BeamSearchOutput:
    """Return the best continuations of a prompt. Cancel the call to end it early.

    Args:
        llm: computes the steps.
        request_id: the caller's id of the search; all requests of the search have it, also in logs.
        prompt: text, ids, TextPrompt or TokensPrompt.
        params: the parameters of the search.
        lora_request: adapter of the requests.
        priority: larger is more urgent.

    Raises:
        InvalidRequest: the prompt is wrong or too long, the vocabulary too small for so many beams, or the engine core has
            logits in place of log-probabilities.
        Overloaded, Unavailable: the server cannot run the search now.
    """
    if normalize_prompt(prompt).embeds is not None:
        raise InvalidRequest("Beam search does not take prompt_embeds: it continues a prompt of ids.", field="prompt_embeds")
    search = _Search(llm, request_id, prompt, params, lora_request, priority)
    return await search.run()


class _Search:
    """One search: sends the requests of each step and makes the output."""

    def __init__(
        self,
        llm: AsyncLLM,
        request_id: str,
        prompt: PromptType,
        params: BeamSearchParams,
        lora_request: LoRARequest | None,
        priority: int,
    ) -> None:
        self._llm = llm
        self._request_id = request_id
        self._prompt = prompt
        self._params = params
        self._lora_request = lora_request
        self._priority = priority
        self._eos_token_ids = frozenset() if params.ignore_eos else llm.tokenizer_info.eos_token_ids
        self._num_top = num_candidates(params.beam_width, len(self._eos_token_ids))
        self._vocab_size = min(filter(None, (llm.tokenizer_info.vocab_size, llm.engine_info.vocab_size)))
        if llm.engine_info.logprobs_mode.endswith("logits"):
            text = f"Beam search adds log-probabilities up, and logprobs_mode {llm.engine_info.logprobs_mode} has logits."
            raise InvalidRequest(text, field="use_beam_search")
        if self._num_top > self._vocab_size:
            text = (
                f"beam_width={params.beam_width} needs the {self._num_top} most likely tokens of every step,"
                f" but the vocabulary has {self._vocab_size}."
            )
            raise InvalidRequest(text, field="beam_width")

    async def run(self) -> BeamSearchOutput:
        stream = await self._ask(self._prompt)  # raises all errors of the prompt
        ids, features = stream.prompt_token_ids, stream.features
        room = self._llm.max_model_len - stream.num_virtual_tokens - len(ids)
        tops = await _collect([stream])
        beams = Beams(
            self._params.beam_width,
            max_tokens=min(self._params.max_tokens, room),
            eos_token_ids=self._eos_token_ids,
            length_penalty=self._params.length_penalty,
            early_stopping=self._params.early_stopping,
        )
        salt = normalize_prompt(self._prompt).cache_salt
        while True:
            known = [self._known(top) for top in tops]
            if not all(tops) or not any(known):
                beams.abort()
                break
            beams.step(known)
            if beams.done:
                break
            tops = await self._step([_tokens(ids + beam.token_ids, salt, features) for beam in beams.running])
        return BeamSearchOutput(await self._sequences(ids, beams.finished))

    def _known(self, top: PositionLogprobs) -> PositionLogprobs:
        """Return the candidates that the tokenizer has: tables of models are padded, and no prompt may have their last ids."""
        if not top or max(top) < self._vocab_size:
            return top
        return {token_id: found for token_id, found in top.items() if token_id < self._vocab_size}

    async def _step(self, prompts: Iterable[PromptType]) -> list[PositionLogprobs]:
        """Return the candidates that follow each prompt; see _collect."""
        streams: list[OutputStream] = []
        try:
            for prompt in prompts:
                streams.append(await self._ask(prompt))  # noqa: PERF401 - the streams before a failing one must be closed
        except BaseException:
            for stream in streams:
                stream.close()
            raise
        return await _collect(streams)

    async def _ask(self, prompt: PromptType) -> OutputStream:
        # EOS must not end the request: the candidates decide whether a beam ends.
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            logprobs=self._num_top,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        return await self._llm.add_request(
            self._request_id,
            prompt,
            params,
            priority=self._priority,
            lora_request=self._lora_request,
            max_logprobs=self._num_top,
        )

    async def _sequences(self, prompt_ids: list[int], found: list[FinishedBeam]) -> list[BeamSearchSequence]:
        texts = await self._llm.texts.token_texts({i for each in found for position in each.beam.logprobs for i in position})
        return list(await asyncio.gather(*(self._sequence(prompt_ids, each, texts) for each in found)))

    async def _sequence(self, prompt_ids: list[int], found: FinishedBeam, texts: dict[int, str]) -> BeamSearchSequence:
        tokens = prompt_ids + found.beam.token_ids
        stopped = found.reason == "stop"
        shown = tokens[:-1] if stopped and not self._params.include_stop_str_in_output else tokens
        return BeamSearchSequence(
            orig_prompt=TokensPrompt(prompt_token_ids=prompt_ids),
            tokens=tokens,
            logprobs=[_named(position, texts) for position in found.beam.logprobs],
            lora_request=self._lora_request,
            cum_logprob=found.beam.cum_logprob,
            text=await self._llm.texts.detokenize(shown, skip_special_tokens=False),
            finish_reason=found.reason,
            stop_reason=tokens[-1] if stopped else None,
            score=found.score,
        )


async def _collect(streams: list[OutputStream]) -> list[PositionLogprobs]:
    """Return the candidates of each stream; no candidates for a stream that was aborted, for example by an operator."""
    try:
        outputs = [await stream.get() for stream in streams]
    finally:
        for stream in streams:
            stream.close()
    return [(output.outputs[0].logprobs or [{}])[0] for output in outputs]


def _tokens(ids: list[int], cache_salt: str, features: Sequence[MediaFeature]) -> TokensPrompt:
    return TokensPrompt(prompt_token_ids=ids, cache_salt=cache_salt, mm_features=features)


def _named(position: PositionLogprobs, texts: dict[int, str]) -> PositionLogprobs:
    return {token_id: Logprob(entry.logprob, entry.rank, texts.get(token_id)) for token_id, entry in position.items()}


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number, got {value!r}.", field=name)
    return value


def _is_early_stopping(value: object) -> bool:
    return isinstance(value, bool) or value == "never"
