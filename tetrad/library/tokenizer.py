"""Tokenizer: converts text and ids through the tokenizer service, for blocking programs. The result of LLM.get_tokenizer."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.library.event_loop_thread import EventLoopThread


class Tokenizer:
    """The model's tokenizer, with the most used methods of transformers' tokenizers.

    Args:
        llm: calls the tokenizer service.
        loop: event loop of `llm`.
    """

    def __init__(self, llm: AsyncLLM, loop: EventLoopThread) -> None:
        self._llm = llm
        self._loop = loop

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary; all ids are smaller."""
        return self._llm.tokenizer_info.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """The id that starts a text; None if the model has none."""
        return self._llm.tokenizer_info.bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        """The id that ends a text; None if the model has none."""
        return self._llm.tokenizer_info.eos_token_id

    @property
    def chat_template(self) -> str:
        """The model's chat template; empty if it has none."""
        return self._llm.tokenizer_info.chat_template

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""
        return self._loop.run(self._llm.texts.tokenize(text, add_special_tokens=add_special_tokens))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids; InvalidRequest for ids outside the vocabulary."""
        return self._loop.run(self._llm.texts.detokenize(token_ids, skip_special_tokens=skip_special_tokens))

    def apply_chat_template(
        self,
        conversation: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **kwargs: Any,
    ) -> str | list[int]:
        """Return the prompt of a conversation, as ids or (`tokenize=False`) as text; `kwargs` are passed to the template."""
        prompt = self._loop.run(
            self._llm.texts.encode_chat(
                conversation,
                tools=tools,
                chat_template=chat_template,
                chat_template_kwargs=kwargs or None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
        )
        return prompt["prompt_token_ids"] if tokenize else prompt["prompt"] or ""
