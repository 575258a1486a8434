"""Wire of prompt embeddings: decodes the vectors of a prompt, and their positions."""

import numpy as np

from tetrad.services.errors import InvalidRequest
from tetrad.v1 import types_pb2, worker_pb2
from tetrad.worker_svc.core.plan import PromptEmbeds

_FLOAT32_BYTES = 4


def decode_prompt_embeds(message: worker_pb2.NewRequestData) -> PromptEmbeds:
    """Return a prompt's embeddings, [N, hidden] float32; raise InvalidRequest if fields contradict each other."""
    tensor = message.prompt_embeds
    if tensor.dtype != types_pb2.DATA_TYPE_FLOAT32 or len(tensor.shape) != 2 or tensor.WhichOneof("payload") != "inline":
        raise InvalidRequest("prompt_embeds must be a float32 tensor [positions, hidden_size], sent inline.")
    rows, size = tensor.shape
    if rows < 1 or size < 1 or len(tensor.inline) != rows * size * _FLOAT32_BYTES:
        raise InvalidRequest(f"prompt_embeds of shape [{rows}, {size}] cannot have {len(tensor.inline)} bytes.")
    values = np.frombuffer(tensor.inline, "<f4").reshape(rows, size)
    is_id = np.frombuffer(message.prompt_is_token_ids, np.uint8)
    positions = np.flatnonzero(is_id == 0) if len(is_id) else np.arange(rows)
    if len(positions) != rows:
        raise InvalidRequest(f"prompt_embeds have {rows} rows, but prompt_is_token_ids names {len(positions)} positions.")
    return PromptEmbeds(positions, values)
