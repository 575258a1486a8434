"""BatchRequests: converts the arguments of LLM's methods to the items of a batch. Called by LLM only.

Checks the lengths of lists, renders conversations, and adds seeds to requests without one. Runs no requests.
"""

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.prompts import PromptType, TokensPrompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.library.arguments import (
    Conversation,
    check_content_format,
    lora_requests_of,
    priorities_of,
    sampling_params_of,
    tokenization_of,
    tools_of,
)
from tetrad.library.batch import BatchItem, BatchRunner, PromptMaker
from tetrad.library.media_prompts import has_media_parts, messages_with_files, with_processor_kwargs
from tetrad.library.running_llm import RunningLLM
from tetrad.services.errors import InvalidRequest

Prompts = PromptType | Sequence[PromptType] | None
Params = SamplingParams | Sequence[SamplingParams] | None
Adapters = LoRARequest | Sequence[LoRARequest | None] | None
Priorities = int | Sequence[int] | None


class BatchRequests:
    """Makes the requests of one LLM.

    Args:
        running: renders conversations, and has the model's default parameters.
        batches: renders many conversations concurrently.
        seed: seed of the seeds for requests without one; None: the engine draws these seeds.
        chat_template: template of conversations, instead of the model's.
    """

    def __init__(self, running: RunningLLM, batches: BatchRunner, *, seed: int | None, chat_template: str | None) -> None:
        self._running, self._batches = running, batches
        self._seeds = None if seed is None else random.Random(seed)
        self._chat_template = chat_template

    def of_prompts(
        self,
        prompts: Sequence[PromptType | PromptMaker],
        params: Sequence[SamplingParams],
        *,
        lora_request: Adapters,
        priority: Priorities,
        tokenization_kwargs: Mapping[str, Any] | None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[BatchItem]:
        """Return the requests of prompts. Arguments and errors: see LLM.generate."""
        adapters = lora_requests_of(lora_request, len(prompts))
        numbers = priorities_of(priority, len(prompts))
        options = tokenization_of(tokenization_kwargs)
        return [
            BatchItem(_with_kwargs(prompt, mm_processor_kwargs), self._seeded(each), number, adapter, options)
            for prompt, each, number, adapter in zip(prompts, params, numbers, adapters, strict=True)
        ]

    def of_conversations(
        self,
        conversations: Sequence[Conversation],
        params: Sequence[SamplingParams],
        *,
        chat_template: str | None,
        content_format: str,
        tools: Sequence[dict[str, Any]] | None,
        tokenization_kwargs: Mapping[str, Any] | None,
        lora_request: Adapters,
        priority: Priorities,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        **template: Any,
    ) -> list[BatchItem]:
        """Render conversations and return their requests. Arguments and errors: see LLM.chat."""
        check_content_format(content_format)
        template_text = chat_template or self._chat_template
        tokenization = tokenization_of(tokenization_kwargs)
        render = functools.partial(
            self._rendered,
            tools=tools_of(tools),
            chat_template=template_text,
            keep_parts=content_format == "openai",
            add_special_tokens=tokenization.get("add_special_tokens", False),
            is_truncated=tokenization.get("truncate_prompt_tokens") is not None,
            **template,
        )
        with_images = functools.partial(render, mm_processor_kwargs=mm_processor_kwargs)
        own_template = template_text is not None
        texts = [functools.partial(render, each) for each in conversations if not has_media_parts(each)]
        rendered = iter(self._running.run(self._batches.render_chats(texts, own_template=own_template)))
        prompts = [
            self._batches.maker(functools.partial(with_images, each), own_template=own_template)
            if has_media_parts(each)
            else next(rendered)
            for each in conversations
        ]
        return self.of_prompts(
            prompts, params, lora_request=lora_request, priority=priority, tokenization_kwargs=tokenization_kwargs
        )

    def params_of(self, params: Params, num_prompts: int) -> list[SamplingParams]:
        """Return the parameters of each prompt: the given ones, or the model's defaults."""
        default = self._running.frontend.get_default_sampling_params
        return sampling_params_of(default() if params is None else params, num_prompts)

    async def _rendered(self, messages: Conversation, **options: Any) -> TokensPrompt:
        """Return the prompt of a conversation; options: see ChatOptions."""
        return await self._running.frontend.texts.encode_chat(await messages_with_files(messages), **options)

    def _seeded(self, params: SamplingParams) -> SamplingParams:
        if self._seeds is None or params.seed is not None:
            return params
        return dataclasses.replace(params, seed=self._seeds.getrandbits(62))


def _with_kwargs(prompt: PromptType | PromptMaker, kwargs: Mapping[str, Any] | None) -> PromptType | PromptMaker:
    return prompt if callable(prompt) else with_processor_kwargs(prompt, kwargs)


def template_of(given: Path | str | None) -> str | None:
    """Return a template; if a path is given, read it from the file. InvalidRequest if the file cannot be read."""
    if isinstance(given, str) and ("{" in given or "\n" in given):
        return given
    if given is None:
        return None
    try:
        return Path(given).read_text()
    except OSError as error:
        raise InvalidRequest(
            f"chat_template={str(given)!r} is no template and cannot be read: {error}.", field="chat_template"
        ) from error
