"""Adapters' wire: decodes the adapter and the prompt embeddings of a request, and encodes adapters."""

from collections.abc import Sequence

from tetrad.engine_core_svc.core.adapter import Adapter, LoraRef
from tetrad.engine_core_svc.core.prompt_embeds import PromptEmbeds
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.message_size import batches
from tetrad.v1 import engine_core_pb2, types_pb2

_ENTRY_BYTES = 16
"""Upper limit of the bytes that a list adds to each adapter: its tag and length."""
_FLOAT32_BYTES = 4
_TOKEN_BYTES = 4
_MATRIX = 2


def decode_lora(message: types_pb2.LoraRequest) -> LoraRef:
    """Return the adapter that a message names. Raises Unsupported for weights of experts in one tensor."""
    if message.is_3d_lora_weight:
        raise Unsupported("is_3d_lora_weight is not supported: experts cannot be adapted.", field="is_3d_lora_weight")
    return LoraRef(message.name, message.id, message.path, message.load_inplace, message.base_model_name)


def encode_lora(adapter: Adapter) -> types_pb2.LoraRequest:
    """Return an adapter in the form that clients use."""
    ref = adapter.ref
    return types_pb2.LoraRequest(name=ref.name, id=ref.lora_id, path=ref.path, base_model_name=ref.base_model_name)


def encode_lora_list(adapters: Sequence[Adapter], after_id: int | None) -> engine_core_pb2.ListLorasResponse:
    """Return the adapters with larger ids than `after_id`, as many as fit one message; None: all adapters."""
    if after_id is None:
        return engine_core_pb2.ListLorasResponse(loras=map(encode_lora, adapters))
    later = sorted((each for each in adapters if each.ref.lora_id > after_id), key=lambda each: each.ref.lora_id)
    page = next(batches(map(encode_lora, later), lambda lora: lora.ByteSize() + _ENTRY_BYTES), [])
    return engine_core_pb2.ListLorasResponse(loras=page, has_more=len(page) < len(later))


def decode_prompt_embeds(message: engine_core_pb2.EngineCoreRequest) -> PromptEmbeds:
    """Return a prompt's embeddings. Raises InvalidRequest, which names the numbers, if the fields disagree."""
    tensor, num_tokens = message.prompt_embeds, len(message.prompt_token_ids) // _TOKEN_BYTES
    is_inline = tensor.WhichOneof("payload") == "inline"
    if tensor.dtype != types_pb2.DATA_TYPE_FLOAT32 or len(tensor.shape) != _MATRIX or not is_inline:
        text = "prompt_embeds must be a float32 tensor [positions, hidden_size], sent inline."
        raise InvalidRequest(text, field="prompt_embeds")
    rows, hidden_size = tensor.shape
    if rows < 1 or hidden_size < 1 or len(tensor.inline) != rows * hidden_size * _FLOAT32_BYTES:
        text = f"prompt_embeds of shape [{rows}, {hidden_size}] cannot have {len(tensor.inline)} bytes."
        raise InvalidRequest(text, field="prompt_embeds")
    flags = message.prompt_is_token_ids or bytes(num_tokens)
    if len(flags) != num_tokens or flags.count(0) != rows:
        raise InvalidRequest(
            f"prompt_is_token_ids has {len(flags)} positions, {flags.count(0)} of them embeddings; the prompt has {num_tokens} "
            f"positions and prompt_embeds {rows} rows.",
            field="prompt_is_token_ids",
        )
    return PromptEmbeds(tensor.inline, hidden_size, flags)
