"""Wire: converts messages to and from the tokenizer's values. Only this file and servicer.py know protobuf."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_u32, split_rows, unpack_u32
from tetrad.services.rpc.status import to_status
from tetrad.services.version import VERSION
from tetrad.tokenizer_svc.api.media_wire import encode_media_limits, num_media
from tetrad.tokenizer_svc.chat.pair_prompts import PairTemplate
from tetrad.tokenizer_svc.chat.renderer import Conversation
from tetrad.tokenizer_svc.media.items import PlacedMedia
from tetrad.tokenizer_svc.media.prompts import MediaLimits
from tetrad.tokenizer_svc.tokenizer.detokenize_stream import Deltas, DetokenizeStream, OpenHandle
from tetrad.tokenizer_svc.tokenizer.tokenizer import EncodedPair, Tokenizer, Truncation
from tetrad.v1 import tokenizer_pb2

_ENTRY_BYTES = 4
"""Bytes of a u32 in a column."""


def decode_truncation(request: tokenizer_pb2.EncodeRequest | tokenizer_pb2.RenderChatRequest) -> Truncation | None:
    """Return how to shorten texts; None: do not shorten them."""
    if not request.HasField("max_tokens"):
        return None
    return Truncation(request.max_tokens, keep_end=request.truncation_side != tokenizer_pb2.TRUNCATION_SIDE_RIGHT)


def adds_special_tokens(request: tokenizer_pb2.EncodeRequest) -> bool:
    """Return whether to add BOS and similar tokens; if unset, they are added."""
    return not request.HasField("add_special_tokens") or request.add_special_tokens


def skips_special_tokens(request: tokenizer_pb2.DecodeRequest | tokenizer_pb2.DetokenizeOpen) -> bool:
    """Return whether to skip special tokens in texts; if unset, they are skipped."""
    return not request.HasField("skip_special_tokens") or request.skip_special_tokens


class EncodedText(NamedTuple):
    """One text's tokens as a message, and its media, which are written into the response itself (media_wire.py)."""

    message: tokenizer_pb2.Encoding
    media: Sequence[PlacedMedia] = ()


def encode_tokens(token_ids: Sequence[int], token_strings: Sequence[str] = ()) -> tokenizer_pb2.Encoding:
    """Return one text's tokens as a message. Takes milliseconds for 100,000: call it in the thread that encoded them."""
    return tokenizer_pb2.Encoding(token_ids=pack_u32(token_ids), token_strings=token_strings)


def decode_prompt_ids(request: tokenizer_pb2.EncodeRequest) -> list[int]:
    """Return the ids of a request's prompt. Raises InvalidRequest for fields that do not apply to a prompt of ids."""
    if request.texts or not request.media:
        text = "token_ids are a prompt with media, in place of texts: leave texts out, or tokenize nothing."
        raise InvalidRequest(text, field="token_ids")
    if request.return_token_strings or request.HasField("add_special_tokens"):
        text = "A prompt of ids has its special tokens, and no token strings: leave add_special_tokens and "
        raise InvalidRequest(f"{text}return_token_strings unset.", field="token_ids")
    return unpack_u32(request.token_ids)


def decode_pairs(request: tokenizer_pb2.EncodeRequest) -> list[tuple[str, str]]:
    """Return the pairs of texts of a request. Raises InvalidRequest for options that do not apply to pairs."""
    if request.media:
        raise InvalidRequest("Pairs of texts have no media.", field="media")
    if len(request.text_pairs) != len(request.texts):
        raise InvalidRequest(
            f"text_pairs must have one text for each of texts: got {len(request.text_pairs)} and {len(request.texts)}.",
            field="text_pairs",
        )
    if request.return_token_strings or not adds_special_tokens(request):
        raise InvalidRequest(
            "Pairs are joined by special tokens, and have no token strings: leave add_special_tokens and "
            "return_token_strings unset.",
            field="text_pairs",
        )
    return list(zip(request.texts, request.text_pairs, strict=True))


def decode_pair_template(request: tokenizer_pb2.EncodeRequest) -> PairTemplate:
    """Return a request's template for pairs."""
    return PairTemplate(
        source=request.chat_template if request.HasField("chat_template") else None,
        kwargs_json=_decode_text(request.chat_template_kwargs_json, "chat_template_kwargs_json"),
    )


def encode_pair(encoded: EncodedPair) -> tokenizer_pb2.Encoding:
    """Return one pair's tokens as a message."""
    return tokenizer_pb2.Encoding(token_ids=pack_u32(encoded.token_ids), token_type_boundary=encoded.type_boundary)


def decode_conversation(request: tokenizer_pb2.RenderChatRequest) -> Conversation:
    """Return the conversation of a request. Raises InvalidRequest if its fields contradict each other."""
    given = request.HasField("add_generation_prompt")
    if given and request.add_generation_prompt and request.continue_final_message:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message exclude each other: one opens a turn, one leaves it open.",
            field="continue_final_message",
        )
    return Conversation(
        messages_json=_decode_text(request.messages_json, "messages_json"),
        tools_json=_decode_text(request.tools_json, "tools_json"),
        documents_json=_decode_text(request.documents_json, "documents_json"),
        chat_template_kwargs_json=_decode_text(request.chat_template_kwargs_json, "chat_template_kwargs_json"),
        chat_template=request.chat_template if request.HasField("chat_template") else None,
        add_generation_prompt=request.add_generation_prompt if given else not request.continue_final_message,
        continue_final_message=request.continue_final_message,
        max_prompt_chars=request.max_prompt_chars if request.HasField("max_prompt_chars") else None,
        num_media=num_media(request),
    )


def apply_to_stream(
    stream: DetokenizeStream, request: tokenizer_pb2.DetokenizeRequest
) -> tokenizer_pb2.DetokenizeResponse | None:
    """Apply one message to the open handles; return the answer, None if the message has none.

    Raises:
        InvalidRequest: the columns disagree; it is unknown which handles are concerned, so the stream ends.
    """
    for opened in request.open:
        stream.open(_decode_open_handle(opened))
    response = None
    if request.HasField("append"):
        columns = request.append
        rows = split_rows(unpack_u32(columns.token_ids), unpack_u32(columns.num_tokens))
        handles = unpack_u32(columns.handles)
        if len(handles) != len(rows):
            raise InvalidRequest(f"Columns disagree: {len(handles)} handles, but {len(rows)} counts.", field="append")
        response = _encode_deltas(stream.append(handles, rows, unpack_u32(columns.final_handles)))
    if request.close:
        stream.close(unpack_u32(request.close))
    return response


def append_sizes(request: tokenizer_pb2.DetokenizeRequest) -> tuple[int, int]:
    """Return the number of handles and of tokens that a message appends."""
    return len(request.append.handles) // _ENTRY_BYTES, len(request.append.token_ids) // _ENTRY_BYTES


def encode_info(tokenizer: Tokenizer, model: str, media: Sequence[MediaLimits]) -> tokenizer_pb2.GetInfoResponse:
    """Return the description of a tokenizer that preprocesses these media."""
    facts = tokenizer.facts
    special, defaults = facts.special, facts.generation_config or facts.release_config
    return tokenizer_pb2.GetInfoResponse(
        model=model,
        vocab_size=tokenizer.vocab_size,
        bos_token_id=tokenizer.token_id(special.bos),
        eos_token_id=tokenizer.token_id(special.eos),
        pad_token_id=tokenizer.token_id(special.pad),
        unk_token_id=tokenizer.token_id(special.unk),
        eos_token_ids=facts.eos_token_ids,
        has_chat_template="default" in facts.chat_templates,
        chat_template=facts.chat_templates.get("default", ""),
        model_max_length=facts.max_length,
        tokenizer_hash=tokenizer.hash,
        special_token_ids=tokenizer.special_token_ids,
        version=VERSION,
        generation_config_json=json.dumps(defaults) if defaults else "",
        prompts=facts.prompts,
        modalities=encode_media_limits(media),
    )


def _decode_open_handle(opened: tokenizer_pb2.DetokenizeOpen) -> OpenHandle:
    spaces = not opened.HasField("spaces_between_special_tokens") or opened.spaces_between_special_tokens
    return OpenHandle(
        handle=opened.handle,
        context_token_ids=unpack_u32(opened.context_token_ids),
        num_generated=opened.num_generated,
        num_chars_emitted=opened.num_chars_emitted,
        skip_special_tokens=skips_special_tokens(opened),
        spaces_between_special_tokens=spaces,
    )


def _encode_deltas(deltas: Deltas) -> tokenizer_pb2.DetokenizeResponse:
    failures = [tokenizer_pb2.DetokenizeFailure(handle=handle, status=to_status(error)) for handle, error in deltas.failures]
    return tokenizer_pb2.DetokenizeResponse(handles=pack_u32(deltas.handles), deltas=deltas.texts, failures=failures)


def _decode_text(column: bytes, field: str) -> str:
    try:
        return column.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{field} is not UTF-8: {error}.", field=field) from error
