"""PoolingInputs: converts the inputs of a pooling request to token ids, or raises why one of them is invalid.

Called by the pooling intake. Calls the tokenizer, with all texts of a request in few messages; knows no engines.
"""

from collections.abc import Sequence

from tetrad.frontend.llm.limits import Limits
from tetrad.frontend.llm.prompt_adapters import PromptAdapters
from tetrad.frontend.llm.prompt_ids import kept
from tetrad.frontend.request.new_pooling import NewPooling
from tetrad.frontend.request.prompts import Prompt, normalize_prompt
from tetrad.frontend.tokenizer.client import TokenizerClient
from tetrad.services.errors import InvalidRequest, Unsupported


class PoolingInputs:
    """The input conversion of one model.

    Args:
        tokenizer: encodes texts.
        limits: the limits of the server and the model.
        prompt_adapters: the prompt adapters, which pooling requests may not use.
    """

    def __init__(self, tokenizer: TokenizerClient, limits: Limits, prompt_adapters: PromptAdapters) -> None:
        self._tokenizer, self._limits, self._prompt_adapters = tokenizer, limits, prompt_adapters

    async def check_adapters(self, new: NewPooling, *, is_enabled: bool) -> None:
        """Refuse adapters that engine cores cannot apply to pooling requests; `is_enabled`: the engine cores have LoRA."""
        for lora in {each.lora_int_id: each for each in new.lora_requests if each is not None}.values():
            if await self._prompt_adapters.rows_of(lora) is not None:
                text = f"Prompt adapters are not supported for pooling, and {lora.lora_name} is one."
                raise Unsupported(text, field="lora_request")
            if not is_enabled:
                raise Unsupported(f"Got lora_request {lora.lora_name} but LoRA is not enabled!", field="lora_request")

    async def read(self, new: NewPooling, longest: int) -> tuple[list[list[int]], list[str]]:
        """Return the ids and the cache_salt of each input.

        InvalidRequest if an input is invalid; with several inputs, the error names its index.

        Args:
            new: the request.
            longest: maximum number of tokens of an input.
        """
        keep = tokens_to_keep(new.truncate_prompt_tokens, longest)
        keep_end = new.truncation_side == "left"
        prompts = [self._checked(place, prompt, new, longest) for place, prompt in enumerate(new.prompts)]
        texts = [prompt.text or "" for prompt in prompts if prompt.token_ids is None]
        encoded = iter(
            await self._tokenizer.encode_many(
                texts, add_special_tokens=new.add_special_tokens, max_tokens=keep, keep_end=keep_end
            )
        )
        ids = [next(encoded) if prompt.token_ids is None else kept(prompt.token_ids, keep, keep_end) for prompt in prompts]
        for place, each in enumerate(ids):
            try:
                self._limits.check_prompt(each, num_new_tokens=0, longest=longest)
            except InvalidRequest as error:
                raise placed(error, place, new.prompts) from None
        return ids, [prompt.cache_salt for prompt in prompts]

    def _checked(self, place: int, given: object, new: NewPooling, longest: int) -> Prompt:
        try:
            prompt = normalize_prompt(given, cache_salt=new.cache_salt)  # type: ignore[arg-type] # it checks the type
            if prompt.embeds is not None:
                raise InvalidRequest("prompt_embeds are not supported for pooling.", field="prompt_embeds")
            if prompt.media or prompt.features:
                raise InvalidRequest("images are not supported for pooling.", field="multi_modal_data")
            if prompt.token_ids is None:
                is_truncated = new.truncate_prompt_tokens is not None
                self._limits.check_text(prompt.text or "", longest=longest, is_truncated=is_truncated)
            return prompt
        except InvalidRequest as error:
            raise placed(error, place, new.prompts) from None


def tokens_to_keep(truncate: int | None, longest: int) -> int | None:
    """Return the number of tokens of an input to keep; None: all. InvalidRequest for a value out of range.

    Args:
        truncate: truncate_prompt_tokens of the request; -1: as many as an input may have.
        longest: maximum number of tokens of an input.
    """
    if truncate is None:
        return None
    if truncate < -1 or truncate == 0 or truncate > longest:
        text = f"truncate_prompt_tokens must be -1 or in [1, {longest}], got {truncate}."
        raise InvalidRequest(text, field="truncate_prompt_tokens")
    return longest if truncate == -1 else truncate


def placed(error: InvalidRequest, place: int, prompts: Sequence[object]) -> InvalidRequest:
    """Return the error; with several inputs, its message names the index of the input."""
    if len(prompts) > 1:
        error.message = f"Input {place}: {error.message}"
        error.args = (error.message,)
    return error
