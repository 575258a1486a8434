"""Images on an Execute stream: items are encoded while no step runs, and steps give the logits of transformers' whole model."""

import asyncio

import numpy as np
import pytest

from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference, picture
from tests.worker_svc.media.image_prompts import blocks, encoder_inputs, feature, image_prompt
from tests.worker_svc.service_client import connect, step
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.v1 import types_pb2, worker_pb2

LOGPROBS = types_pb2.SamplingParams(temperature=0.0, logprobs=0)
LAYOUT = {"num_blocks": 64, "max_model_len": 512, "max_num_batched_tokens": 512, "encoder_cache_size": 512}


async def read(stream):
    return await asyncio.wait_for(stream.read(), 30)


def new_request(handle, prompt, **fields):
    return worker_pb2.NewRequestData(
        handle=handle,
        request_id=str(handle),
        token_ids=pack_u32(prompt.token_ids),
        num_prompt_tokens=len(prompt.token_ids),
        num_scheduled_tokens=len(prompt.token_ids),
        block_ids=blocks(1 + 20 * handle, 20),
        sampling_params=LOGPROBS,
        mm_features=map(feature, prompt.spans),
        **fields,
    )


async def start(client, directory):
    await client.load(directory)
    await client.initialize(**LAYOUT)
    _ = [message async for message in client.life.WarmUp(worker_pb2.WarmUpRequest())]
    return await client.open_stream()


@pytest.mark.parametrize("kind", ["smolvlm", "qwen2_5_vl"])
async def test_a_step_after_the_event_of_its_image_has_the_logits_of_the_whole_model(kind, tmp_path):
    save_vision_model(tmp_path, kind)
    reference = VisionReference(tmp_path)
    prompt = image_prompt(reference, [picture(60, 40)])
    expected = reference.generate(prompt.prepared, 4)

    async with connect(tmp_path) as client:
        stream = await start(client, tmp_path)
        await stream.write(encoder_inputs(prompt.items))
        ready = (await read(stream)).encoder_events
        await stream.write(step(1, new_requests=[new_request(0, prompt)]))
        outputs = [(await read(stream)).output]
        for index in range(1, 4):
            await stream.write(step(index + 1, cached=[(0, len(prompt.token_ids) + index - 1)]))
            outputs.append((await read(stream)).output)

    assert list(ready.encoded) == [prompt.items[0].identifier]
    tokens = [unpack_u32(output.token_ids)[0] for output in outputs]
    found = [np.frombuffer(output.logprobs_by_width[0].columns.logprobs, "<f4")[0] for output in outputs]
    assert tokens == expected.token_ids
    assert np.abs(np.array(found) - expected.logprobs_of_tokens()).max() < 1e-4
