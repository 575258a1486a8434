"""InputProcessor: converts a caller's prompt and parameters to a request for the engine core, or raises why they are invalid.

Called by the intake. Calls the tokenizer; knows limits and the model's facts; knows no engines and no outputs.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from tetrad.frontend.engine.prepared_request import PreparedRequest
from tetrad.frontend.llm.constraint_start import behind_open_reasoning, behind_reasoning
from tetrad.frontend.llm.prompt_adapters import PromptAdapters
from tetrad.frontend.llm.prompt_ids import PromptReader
from tetrad.frontend.llm.served_model import ServedModel
from tetrad.frontend.llm.thinking_budget import check_budget, marks_of_budget
from tetrad.frontend.media.loader import MediaLoader
from tetrad.frontend.request.deadlines import Deadline
from tetrad.frontend.request.new_request import NewRequest
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.prompt_embeds import PromptEmbeds
from tetrad.frontend.request.prompt_scores import check_rows
from tetrad.frontend.request.prompts import Prompt, normalize_prompt
from tetrad.frontend.request.request_state import RequestState
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.tokenizer.client import TokenizerClient
from tetrad.services.errors import InvalidRequest
from tetrad.services.timers.time_slice import TimeSlice


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """The prompt and parameters of a request, ready to be sent as token ids.

    Attributes:
        token_ids: the ids of the prompt, after truncation.
        params: the parameters, with max_tokens limited to the context.
    """

    token_ids: list[int]
    params: SamplingParams


class InputProcessor:
    """Prepares requests for one model.

    Args:
        tokenizer: encodes texts.
        model: gives special ids, limits and the marks of reasoning.
        prompt_adapters: the adapters whose virtual tokens precede prompts.
        media: reads the files of images.
    """

    def __init__(
        self, tokenizer: TokenizerClient, model: ServedModel, prompt_adapters: PromptAdapters, media: MediaLoader
    ) -> None:
        self._tokenizer, self._prompt_adapters = tokenizer, prompt_adapters
        self._reader = PromptReader(tokenizer, model, media)
        self._info, self._formats = model.tokenizer, model.formats
        self._stream_interval, self._names_reasoning = model.stream_interval, model.names_reasoning
        self._media_adapters = model.media_adapters
        self.limits, self._padded_vocab_size = model.limits, model.padded_vocab_size

    async def prepare(
        self, request: NewRequest, deadline: Deadline | None, *, new_handle: Callable[[], int]
    ) -> PreparedRequest:
        """Return the prepared request; InvalidRequest if the request is invalid.

        Args:
            request: the caller's request.
            deadline: the deadline that the engine keeps.
            new_handle: returns the handle of each sequence.
        """
        params, prompt, virtual = await self._read(request)
        ids = prompt.ids
        params.stream_interval = params.stream_interval or self._stream_interval
        embeds = prompt.embeds if virtual is None else virtual.before(len(ids), prompt.embeds)
        _check_embeds(embeds, params, prompt)
        # A model of speech writes times beyond its tokenizer's vocabulary.
        vocab_size = None if request.audio_positions is None else self._padded_vocab_size
        self.limits.check_prompt(ids, vocab_size=vocab_size)
        params = await self._with_start(params, prompt.text, ids, request)
        all_ids = ids if virtual is None else [0] * virtual.num_rows + ids
        self.limits.check_prompt(all_ids, vocab_size=vocab_size)
        self.limits.check_logprob_columns(params, len(ids))
        check_rows(params.prompt_logprob_token_ids, params.prompt_logprob_start or 0, len(ids))
        bad_words = await self._encode_bad_words(params.bad_words or [])
        predicted_ids = await self._encode_prediction(request.prediction)
        adapter = request.lora_request or self._media_adapters.of(prompt.features)
        state = RequestState(
            request.request_id,
            prompt.text,
            ids,
            params,
            arrival_time=request.arrival_time,
            lora_request=adapter,
            predicted_ids=predicted_ids,
        )
        state.num_virtual_tokens = len(all_ids) - len(ids)
        state.features = prompt.features
        lora = adapter if virtual is None else None  # only adapters that the engine cores apply
        await self._add_sequences(state, all_ids, lora, deadline, new_handle)
        return PreparedRequest(
            state=state,
            eos_token_id=self._info.eos_token_id,
            stop_token_ids=self._stop_token_ids(params),
            bad_words_token_ids=bad_words,
            thinking=marks_of_budget(params, self._formats, prompt),
            priority=request.priority,
            cache_salt=prompt.cache_salt,
            data_parallel_rank=request.data_parallel_rank,
            predicted_ids=predicted_ids,
            embeds=embeds,
            kv_transfer=request.kv_transfer,
            speech_rules=request.speech_rules,
            audio_positions=request.audio_positions,
        )

    async def render(self, request: NewRequest) -> RenderedPrompt:
        """Return a request's prompt as ids, with the parameters to send; InvalidRequest if the request is invalid."""
        params, prompt, virtual = await self._read(request)
        ids = prompt.ids
        if prompt.features:
            raise InvalidRequest(
                "A prompt with images has no form of token ids alone; send it to a chat endpoint.", field="prompt"
            )
        num_virtual = 0 if virtual is None else virtual.num_rows
        self.limits.check_prompt(ids, num_new_tokens=1 + num_virtual)
        params = await self._with_start(params, prompt.text, ids, request)
        params.max_tokens = self.limits.resolve_max_tokens(params, num_virtual + len(ids))
        return RenderedPrompt(ids, params)

    async def _read(self, request: NewRequest) -> tuple[SamplingParams, Prompt, PromptEmbeds | None]:
        """Return a copy of a request's parameters, its prompt with its ids, and its virtual tokens."""
        params = request.params.clone()
        self.limits.check_params(params, max_logprobs=request.max_logprobs)
        check_budget(params, self._formats)
        prompt = normalize_prompt(request.prompt, cache_salt=request.cache_salt)
        virtual = await self._prompt_adapters.rows_of(request.lora_request)
        keep = self._tokens_to_keep(request, 0 if virtual is None else virtual.num_rows)
        read = await self._reader.read(
            prompt,
            most=keep,
            keep_end=request.truncation_side != "right",
            add_special_tokens=request.add_special_tokens,
        )
        return params, read, virtual

    async def _with_start(
        self, params: SamplingParams, text: str | None, ids: list[int], request: NewRequest
    ) -> SamplingParams:
        """Return `params` with the start of their constraint, if any; see RequestOptions for `reasoning_ended`."""
        outputs = params.structured_outputs
        if outputs is None or outputs.start_after_token_ids is not None or request.reasoning_ended:
            return params
        if request.reasoning_ended is False:
            return behind_open_reasoning(params, self._formats)
        if not self._names_reasoning:
            return params
        if text is None or self._tokens_to_keep(request, 0) is not None:  # a truncated prompt is a part of its text
            [text] = await self._tokenizer.decode([ids], skip_special_tokens=False)
        return behind_reasoning(params, outputs, self._formats, text)

    def _tokens_to_keep(self, request: NewRequest, num_virtual: int) -> int | None:
        limit, truncate = self.limits.max_model_len, request.truncate_prompt_tokens
        if truncate is None:
            truncate = request.params.truncate_prompt_tokens
        if truncate is None:
            return None
        if truncate < -1 or truncate == 0 or truncate > limit:
            text = f"truncate_prompt_tokens must be -1 or in [1, {limit}], got {truncate}."
            raise InvalidRequest(text, field="truncate_prompt_tokens")
        if truncate != -1:
            return truncate
        return max(limit - num_virtual - (request.params.max_tokens or 1), 1)

    async def _encode_prediction(self, text: str) -> list[int]:
        """Return the ids of the expected output, at most max_model_len of them."""
        if not text:
            return []
        self.limits.check_num_chars(len(text), field="prediction")
        most = self.limits.max_model_len
        [ids] = await self._tokenizer.encode([text], add_special_tokens=False, max_tokens=most, keep_end=False)
        return ids

    async def _encode_bad_words(self, words: list[str]) -> list[list[int]]:
        """Return the ids of each word at the start of a text, and also after a space if these differ."""
        if not words:
            return []
        bare_words = [word.lstrip() or word for word in words]
        variants = [variant for word in bare_words for variant in (word, " " + word)]
        encoded = await self._tokenizer.encode(variants, add_special_tokens=False)
        sequences = []
        for bare, spaced in zip(encoded[::2], encoded[1::2], strict=True):
            sequences.append(bare)
            # If the space is a token of its own, this variant would ban the word only after a double space.
            if len(spaced) == len(bare) and spaced[:1] != bare[:1]:
                sequences.append(spaced)
        return [ids for ids in sequences if ids]

    def _stop_token_ids(self, params: SamplingParams) -> list[int]:
        stops = set(params.stop_token_ids or ())
        if not params.ignore_eos:
            stops |= {i for i in self._info.eos_token_ids if i != self._info.eos_token_id}
        return sorted(stops)

    async def _add_sequences(
        self,
        state: RequestState,
        prompt_token_ids: list[int],
        lora: LoRARequest | None,
        deadline: Deadline | None,
        new_handle: Callable[[], int],
    ) -> None:
        params = state.params
        seed = secrets.randbits(62) if params.seed is None else params.seed
        internal_id = f"{state.request_id}-{secrets.token_hex(4)}"
        num_prompt_tokens = len(prompt_token_ids)
        max_tokens = self.limits.resolve_max_tokens(params, num_prompt_tokens)
        self.limits.check_answer_logprobs(params, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens)
        time_slice = TimeSlice()
        for index in range(params.n):
            await time_slice.check()
            state.add_sequence(
                Sequence(
                    internal_id if params.n == 1 else f"{index}_{internal_id}",
                    new_handle(),
                    index,
                    prompt_token_ids,
                    params,
                    seed=_wrap_i64(seed + index),
                    max_tokens=max_tokens,
                    lora_request=lora,
                    deadline=deadline,
                )
            )


def _check_embeds(embeds: PromptEmbeds | None, params: SamplingParams, prompt: Prompt) -> None:
    """Refuse images beside embeddings, and parameters that need the prompt's ids if the prompt consists of embeddings."""
    if embeds is not None and prompt.features:
        text = "Images are not compatible with prompt embeds, and so with adapters of virtual tokens."
        raise InvalidRequest(text, field="messages")
    if embeds is not None and (name := params.needs_whole_prompt):
        text = f"{name} is not compatible with prompt embeds, and so with adapters of virtual tokens."
        raise InvalidRequest(text, field=name)


def _wrap_i64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
