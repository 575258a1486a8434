"""/tokenize, /detokenize and /tokenizer_info: conversions between text and token ids."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.chat.conversations import tool_of, wants_generation_prompt
from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.requests.body import read_body
from tetrad.frontend.api.http.requests.named import llm_of, named_llm
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.api.http.sse.streams import until_disconnected
from tetrad.frontend.api.http.tokens.bodies import DetokenizeRequest, TokenizeRequest
from tetrad.frontend.chat.conversation import Conversation
from tetrad.frontend.chat.turns import render_conversation
from tetrad.frontend.llm.async_llm import AsyncLLM

router = APIRouter()


class Tokenized(msgspec.Struct):
    """The token ids of a text."""

    count: Annotated[int, Meta(description="Tokens.")]
    max_model_len: Annotated[int, Meta(description="Longest prompt plus output, in tokens.")]
    tokens: Annotated[list[int], Meta(description="Their ids.")]
    token_strs: Annotated[list[str] | None, Meta(description="The vocabulary's entry of each, if asked for.")] = None


class Detokenized(msgspec.Struct):
    """The text of token ids."""

    prompt: Annotated[str, Meta(description="The text, special tokens included.")]


class TokenizerFacts(msgspec.Struct):
    """The facts that a client needs to tokenize like this server."""

    model: Annotated[str, Meta(description="The tokenizer's name.")]
    tokenizer_hash: Annotated[str, Meta(description="Equal for equal tokenizers.")]
    vocab_size: Annotated[int, Meta(description="Ids are smaller than this.")]
    model_max_length: Annotated[int | None, Meta(description="Longest text the tokenizer was made for, in tokens.")]
    bos_token: Annotated[str | None, Meta(description="Begins a text, where the model has such a token.")]
    bos_token_id: Annotated[int | None, Meta(description="Its id.")]
    eos_token: Annotated[str | None, Meta(description="Ends a text.")]
    eos_token_id: Annotated[int | None, Meta(description="Its id.")]
    eos_token_ids: Annotated[list[int], Meta(description="All ids that end an output.")]
    chat_template: Annotated[str | None, Meta(description="Jinja source; null: the model has none.")]


_FACTS = {
    "model": "smollm2-135m-instruct",
    "tokenizer_hash": "9f2d",
    "vocab_size": 49152,
    "model_max_length": 8192,
    "bos_token": "<|im_start|>",
    "bos_token_id": 1,
    "eos_token": "<|im_end|>",
    "eos_token_id": 2,
    "eos_token_ids": [2],
    "chat_template": "{% for message in messages %}...",
}
_TOKENIZED = {"count": 2, "max_model_len": 8192, "tokens": [19556, 905], "token_strs": None}


@router.post("/tokenize", **documented(TokenizeRequest, answer=Tokenized, example=_TOKENIZED, tag="tokens"))
async def tokenize(request: Request) -> Response:
    """Return the token ids of a prompt or a conversation."""
    body = await read_body(request, TokenizeRequest)
    llm = llm_of(request, body.model)
    llm.model_names.resolve(body.model)
    return await until_disconnected(request.receive, _tokenized(llm, body))


@router.post(
    "/detokenize",
    **documented(DetokenizeRequest, answer=Detokenized, example={"prompt": "Hello world"}, tag="tokens"),
)
async def detokenize(request: Request) -> Response:
    """Return the text of token ids."""
    body = await read_body(request, DetokenizeRequest)
    llm = llm_of(request, body.model)
    llm.model_names.resolve(body.model)
    work = llm.texts.detokenize(body.tokens, skip_special_tokens=False)
    return JsonResponse(Detokenized(await until_disconnected(request.receive, work)))


@router.get("/tokenizer_info", **documented(answer=TokenizerFacts, example=_FACTS, tag="tokens", errors=(401, 404, 500, 503)))
async def tokenizer_info(
    request: Request,
    model: Annotated[str, Query(description="Name of a model, where several are served. Empty: the first.")] = "",
) -> Response:
    """Return the tokenizer's settings, for clients that tokenize like this server.

    Unlike vLLM's, it needs no flag: /tokenize and /detokenize reveal the same facts.
    """
    llm = named_llm(request, model)
    info = llm.tokenizer_info
    bos, eos = info.bos_token_id, info.eos_token_id
    # Remote tokenizers written for vLLM (lm-evaluation-harness) read the tokens' texts.
    texts = await llm.texts.token_texts(token_id for token_id in (bos, eos) if token_id is not None)
    facts = TokenizerFacts(
        model=info.model,
        tokenizer_hash=info.tokenizer_hash,
        vocab_size=info.vocab_size,
        model_max_length=info.model_max_length,
        bos_token=None if bos is None else texts[bos],
        bos_token_id=bos,
        eos_token=None if eos is None else texts[eos],
        eos_token_id=eos,
        eos_token_ids=sorted(info.eos_token_ids),
        chat_template=info.chat_template if info.has_chat_template else None,
    )
    return JsonResponse(facts)


async def _tokenized(llm: AsyncLLM, body: TokenizeRequest) -> Response:
    strings: list[str] | None
    if body.messages is not None:
        rendered = await render_conversation(llm, _conversation(body))
        text, ids = rendered.get("prompt") or "", rendered["prompt_token_ids"]
        special = body.add_special_tokens is True
        strings = await _strings(llm, text, ids, add_special_tokens=special) if body.return_token_strs else None
    else:
        special = body.add_special_tokens is not False
        ids, strings = await llm.texts.tokenize_with_strings(body.prompt or "", add_special_tokens=special)
    return JsonResponse(Tokenized(len(ids), llm.max_model_len, ids, strings if body.return_token_strs else None))


async def _strings(llm: AsyncLLM, text: str, ids: list[int], *, add_special_tokens: bool) -> list[str]:
    """Return the vocabulary's entry of each token of a rendered conversation.

    Tokens that its text does not have, as those of an image, are special: their entries are their texts.
    """
    found = await llm.texts.tokenize_with_strings(text, add_special_tokens=add_special_tokens)
    entries = dict(zip(*found, strict=True))
    entries |= await llm.texts.token_texts(set(ids) - entries.keys())
    return [entries[token_id] for token_id in ids]


def _conversation(body: TokenizeRequest) -> Conversation:
    return Conversation(
        [message.model_dump(exclude_unset=True) for message in body.messages or ()],
        tools=[tool_of(tool) for tool in body.tools or ()],
        documents=body.documents,
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=wants_generation_prompt(body.add_generation_prompt, body.continue_final_message),
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens is True,
        mm_processor_kwargs=body.mm_processor_kwargs,
        media_io_kwargs=body.media_io_kwargs,
    )
