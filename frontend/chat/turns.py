"""Turns: starts the assistant's turns of a conversation. Every chat API and the LLM class call it.

Renders the conversation, constrains the output if tools require it, and parses the output into pieces. Knows no HTTP and no
engine cores.
"""

import dataclasses
from typing import Any

from tetrad.frontend.chat.constraint import constrained
from tetrad.frontend.chat.conversation import Conversation
from tetrad.frontend.chat.embedded import prompt_with_embeds
from tetrad.frontend.chat.turn_stream import TurnStream
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.parsing.formats import ChatFormats
from tetrad.frontend.request.kv_transfer import KvTransfer
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest

_NO_PARAMETERS = {"type": "object", "properties": {}}


async def render_conversation(
    llm: AsyncLLM, conversation: Conversation, cache_salt: str = "", *, is_truncated: bool = False
) -> TokensPrompt:
    """Return the prompt of a conversation without embeddings; `cache_salt` separates names of images.

    `is_truncated` and errors: see ChatOptions and Texts.encode_chat.
    """
    tools = () if conversation.tool_choice == "none" else conversation.tools
    return await llm.texts.encode_chat(
        conversation.messages,
        tools=[_openai_tool(tool) for tool in tools] or None,
        documents=conversation.documents,
        chat_template=conversation.chat_template,
        chat_template_kwargs=conversation.chat_template_kwargs,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        add_special_tokens=conversation.add_special_tokens,
        mm_processor_kwargs=conversation.mm_processor_kwargs,
        media_io_kwargs=conversation.media_io_kwargs,
        cache_salt=cache_salt,
        is_truncated=is_truncated,
    )


def callable_conversation(conversation: Conversation) -> Conversation:
    """Return the conversation, without tools if the tool choice is "none"."""
    return dataclasses.replace(conversation, tools=()) if conversation.tool_choice == "none" else conversation


async def prepare_turn(
    llm: AsyncLLM,
    conversation: Conversation,
    params: SamplingParams,
    formats: ChatFormats,
    cache_salt: str = "",
    *,
    is_truncated: bool = False,
) -> tuple[TokensPrompt, SamplingParams]:
    """Return the prompt of a turn, and `params` with its constraint, as they are sent.

    Arguments: see start_turn and ChatOptions.
    """
    conversation = callable_conversation(conversation)
    prompt = await render_conversation(llm, conversation, cache_salt, is_truncated=is_truncated)
    params = constrained(params, conversation, formats, prompt.get("prompt") or "")
    if params.skip_special_tokens and needs_special_tokens(formats, conversation):
        params = dataclasses.replace(params, skip_special_tokens=False)
    return prompt, params


async def start_turn(
    llm: AsyncLLM,
    conversation: Conversation,
    params: SamplingParams,
    request_id: str,
    *,
    formats: ChatFormats | None = None,
    priority: int = 0,
    truncate_prompt_tokens: int | None = None,
    truncation_side: str = "left",
    cache_salt: str = "",
    data_parallel_rank: int | None = None,
    model: str | None = None,
    prediction: str = "",
    kv_transfer: KvTransfer | None = None,
) -> TurnStream:
    """Start the assistant's turn. Further arguments and errors: see Texts.encode_chat and AsyncLLM.add_request.

    Args:
        llm: generates the turn.
        conversation: the conversation to continue.
        params: copied; `output_kind` must be DELTA or FINAL_ONLY. Special tokens are kept if parsing needs them.
        request_id: the caller's id.
        formats: the model's formats; None: chosen by its template.
        priority: a larger value is more urgent.
        truncate_prompt_tokens: maximum number of prompt tokens to keep; None: all.
        truncation_side: the end that is dropped, "left" or "right".
        cache_salt: separates prefix caches.
        data_parallel_rank: pins the request to an engine core.
        model: the requested model name, which may be an adapter's.
        prediction: the text that the caller expects as the answer; empty: none.
        kv_transfer: see RequestOptions.

    Raises:
        InvalidRequest: the request is invalid; also for two constraints at once, an unknown `tool_choice`, or a strict tool
            that the model's format cannot constrain.
    """
    formats = llm.chat_formats if formats is None else formats
    conversation = callable_conversation(conversation)
    is_truncated = truncate_prompt_tokens is not None
    rendered, params = await prepare_turn(llm, conversation, params, formats, cache_salt, is_truncated=is_truncated)
    text, embeds = rendered.get("prompt") or "", conversation.embeds
    if embeds and "mm_features" in rendered:
        raise InvalidRequest("Images are not compatible with prompt embeds.", field="messages")
    prompt = await prompt_with_embeds(llm.texts, text, embeds) if embeds else rendered
    stream = await llm.add_request(
        request_id,
        prompt,
        params,
        priority=priority,
        truncate_prompt_tokens=truncate_prompt_tokens,
        truncation_side=truncation_side,
        cache_salt=cache_salt,
        data_parallel_rank=data_parallel_rank,
        lora_request=llm.model_names.lora_of(model),
        prediction=prediction,
        kv_transfer=kv_transfer,
        reasoning_ended=True,  # the constraint says itself where it starts
    )
    outputs = params.structured_outputs
    waits = outputs is not None and outputs.start_after_token_ids is not None
    return TurnStream(stream, formats, conversation, constraint_waits=waits)


def needs_special_tokens(formats: ChatFormats, conversation: Conversation) -> bool:
    """Return whether the parsers need marks that are special tokens, which detokenization would drop."""
    reasoning, tools = formats.reasoning, formats.tools
    if reasoning is not None and reasoning.keeps_special_tokens:
        return True
    return tools is not None and tools.keeps_special_tokens and (tools.wraps_content or bool(conversation.tools))


def _openai_tool(tool: Tool) -> dict[str, Any]:
    """Return the JSON object of a tool in OpenAI's form, which chat templates read."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    # Templates access the properties of the parameters, so these must exist.
    return {"type": "function", "function": function | {"parameters": tool.parameters or _NO_PARAMETERS}}
