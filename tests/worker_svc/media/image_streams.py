"""Execute streams with images: messages of prompts and items, and a client that is ready for them."""

import asyncio
from collections.abc import Sequence

import numpy as np

from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import types_pb2, worker_pb2
from tetrad.worker_svc.core.plan import EncoderItem, MediaSpan

LOGPROBS = types_pb2.SamplingParams(temperature=0.0, logprobs=0)
LAYOUT = {"num_blocks": 64, "max_model_len": 512, "max_num_batched_tokens": 512, "encoder_cache_size": 512}
_TYPES = {
    np.dtype("u1"): types_pb2.DATA_TYPE_UINT8,
    np.dtype("i8"): types_pb2.DATA_TYPE_INT64,
    np.dtype("f4"): types_pb2.DATA_TYPE_FLOAT32,
}


async def read(stream):
    return await asyncio.wait_for(stream.read(), 30)


async def start(client, directory, **changes):
    """Load a model, allocate memory for images and open a stream."""
    await client.load(directory)
    await client.initialize(**LAYOUT | changes)
    _ = [message async for message in client.life.WarmUp(worker_pb2.WarmUpRequest())]
    return await client.open_stream()


def new_request(handle, prompt, **fields):
    """Return a request whose whole prompt runs in its first step, in blocks of its own."""
    return worker_pb2.NewRequestData(
        handle=handle,
        request_id=str(handle),
        token_ids=pack_u32(prompt.token_ids),
        num_prompt_tokens=len(prompt.token_ids),
        num_scheduled_tokens=len(prompt.token_ids),
        block_ids=[pack_u32(list(range(1 + 20 * handle, 21 + 20 * handle)))],
        sampling_params=LOGPROBS,
        mm_features=map(feature, prompt.spans),
        **fields,
    )


def feature(span: MediaSpan) -> types_pb2.MultiModalFeature:
    """Return the message of a span."""
    return types_pb2.MultiModalFeature(
        modality=span.modality,
        identifier=span.identifier,
        hash=span.identifier,
        offset=span.offset,
        length=span.length,
        is_embed=b"" if span.is_embed is None else span.is_embed.astype(np.uint8).tobytes(),
        num_embeds=span.num_embeds,
        grid=span.grid or (),
        time_step=span.time_step,
    )


def encoder_inputs(items: Sequence[EncoderItem]) -> worker_pb2.ExecuteRequest:
    """Return the message that requests items."""
    messages = [
        worker_pb2.EncoderItem(
            identifier=item.identifier,
            modality=item.modality,
            tensors={name: _tensor(array) for name, array in item.tensors.items()},
            num_embeds=item.num_embeds,
        )
        for item in items
    ]
    return worker_pb2.ExecuteRequest(encoder_inputs=worker_pb2.EncoderInputs(items=messages))


def _tensor(array: np.ndarray) -> types_pb2.Tensor:
    return types_pb2.Tensor(dtype=_TYPES[array.dtype], shape=array.shape, inline=array.tobytes())
