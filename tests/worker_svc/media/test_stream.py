"""Images on an Execute stream: items are encoded while no step runs, and steps give the logits of transformers' whole model."""

from dataclasses import replace

import numpy as np
import pytest

from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tests.worker_svc.media.image_prompts import image_prompt
from tests.worker_svc.media.image_streams import LAYOUT, encoder_inputs, new_request, read, start
from tests.worker_svc.service_client import connect, error_of, step
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.rpc.status import from_status
from tetrad.v1 import types_pb2, worker_pb2


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


@pytest.fixture
def smolvlm(tmp_path):
    save_vision_model(tmp_path, "smolvlm")
    return VisionReference(tmp_path)


def tokens_of(response):
    return unpack_u32(response.output.token_ids)


def freeing(step_id, *identifiers, **fields):
    request = step(step_id, **fields)
    request.step.freed_encoder_hashes.extend(identifiers)
    return request


async def test_items_that_cannot_be_encoded_fail_alone(smolvlm, tmp_path):
    prompt = image_prompt(smolvlm, [picture(60, 40)])
    [item] = prompt.items
    pixels = item.tensors["pixel_values"]
    broken = {
        "flat": replace(item, tensors={"pixel_values": pixels.reshape(-1)}),
        "two channels": replace(item, tensors={"pixel_values": pixels[:, :2].copy()}),
        "a small tile": replace(item, tensors={"pixel_values": pixels[..., :14].copy()}),
        "no pixels": replace(item, tensors={}),
        "integers": replace(item, tensors={"pixel_values": pixels.astype(np.int64)}),
        "not a number": replace(item, tensors={"pixel_values": np.full(pixels.shape, np.nan, np.float32)}),
        "fewer embeddings": replace(item, num_embeds=3),
        "a sound": replace(item, modality="audio"),
    }
    items = [replace(each, identifier=name) for name, each in broken.items()]

    async with connect(tmp_path) as client:
        stream = await start(client, tmp_path)
        await stream.write(encoder_inputs([*items, item]))
        events = [(await read(stream)).encoder_events for _ in range(len(items) + 1)]
        await stream.write(step(1, new_requests=[new_request(0, prompt)]))
        output = await read(stream)
        value = client.served.metrics.registry.get_sample_value
        counts = value("tetrad:worker_media_failures_total"), value("tetrad:worker_media_encode_seconds_count")

    failures = {failure.identifier: from_status(failure.error).message for event in events for failure in event.failures}
    assert list(failures) == list(broken)
    assert counts == (len(broken), 1)
    assert failures["flat"].startswith("Tensor 'pixel_values' of a media item has shape [")
    assert failures["two channels"].endswith("expected [-1, 3, -1, -1].")
    assert "cannot be encoded" in failures["a small tile"] or "placeholders" in failures["a small tile"]
    assert failures["no pixels"] == "A media item has no tensor 'pixel_values'; it has none."
    assert failures["integers"] == "Pixels of type int64 in 3 channels; the model takes uint8 in 3."
    assert failures["not a number"] == "The media item became embeddings that are not finite."
    assert "has 3 placeholders for embeddings of 64 values" in failures["fewer embeddings"]
    assert failures["a sound"] == "The model takes media of modality 'image' or 'video', not 'audio'."
    assert list(events[-1].encoded) == [item.identifier]
    assert tokens_of(output) == smolvlm.generate(prompt.prepared, 1).token_ids


async def test_a_tensor_that_cannot_be_read_fails_its_item(smolvlm, tmp_path):
    prompt = image_prompt(smolvlm, [picture(60, 40)])
    request = encoder_inputs([replace(prompt.items[0], identifier=name) for name in ("bfloat16", "short")])
    request.encoder_inputs.items[0].tensors["pixel_values"].dtype = types_pb2.DATA_TYPE_BFLOAT16
    request.encoder_inputs.items[1].tensors["pixel_values"].shape[0] += 1

    async with connect(tmp_path) as client:
        stream = await start(client, tmp_path)
        await stream.write(request)
        messages = [from_status((await read(stream)).encoder_events.failures[0].error).message for _ in range(2)]

    assert "in one of the types float32, int64, int32, uint8, bool" in messages[0]
    assert "cannot have" in messages[1]


async def test_an_item_that_needs_too_much_memory_fails(smolvlm, tmp_path, monkeypatch):
    prompt = image_prompt(smolvlm, [picture(60, 40)])

    async with connect(tmp_path) as client:
        stream = await start(client, tmp_path)
        module = client.served.worker.media.tower._module
        monkeypatch.setattr(type(module), "get_image_features", lambda *_, **__: torch_shortage())
        await stream.write(encoder_inputs(prompt.items))
        [failure] = (await read(stream)).encoder_events.failures

    assert "Encoding a media item of" in from_status(failure.error).message
    assert "more memory" in from_status(failure.error).message


def torch_shortage():
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")


async def test_a_freed_item_is_gone_and_can_be_requested_again(smolvlm, tmp_path):
    prompt = image_prompt(smolvlm, [picture(60, 40)])
    [item] = prompt.items

    async with connect(tmp_path) as client:
        stream = await start(client, tmp_path)
        await stream.write(encoder_inputs([item]))
        await read(stream)
        await stream.write(freeing(1, item.identifier, new_requests=[new_request(0, image_prompt(smolvlm, []))]))
        await stream.write(encoder_inputs([item]))
        responses = [await read(stream), await read(stream)]
        await stream.write(step(2, new_requests=[new_request(1, prompt)]))
        output = await read(stream)
        await stream.write(freeing(3, item.identifier, new_requests=[new_request(2, prompt)]))
        error = await error_of(read(stream))

    assert sorted(response.WhichOneof("message") for response in responses) == ["encoder_events", "output"]
    assert tokens_of(output) == smolvlm.generate(prompt.prepared, 1).token_ids
    assert error.reason == "INVALID_PLAN"
    assert "not in the encoder cache" in error.message


async def test_the_first_plan_of_an_engine_core_may_free_items(smolvlm, tmp_path):
    """Their request was aborted before its first step, and others need the room."""
    prompt = image_prompt(smolvlm, [picture(60, 40)])

    async with connect(tmp_path) as client:
        stream = await start(client, tmp_path)
        await stream.write(encoder_inputs(prompt.items))
        await read(stream)
        await stream.write(freeing(0, prompt.items[0].identifier, new_requests=[new_request(0, prompt)]))
        error = await error_of(read(stream))

    assert "not in the encoder cache" in error.message


async def test_a_new_stream_begins_with_an_empty_cache(smolvlm, tmp_path):
    prompt = image_prompt(smolvlm, [picture(60, 40)])

    async with connect(tmp_path) as client:
        first = await start(client, tmp_path)
        await first.write(encoder_inputs(prompt.items))
        await read(first)
        second = await client.open_stream(epoch=2)
        await second.write(step(1, new_requests=[new_request(0, prompt)]))
        error = await error_of(read(second))

    assert "not in the encoder cache" in error.message


async def test_items_beyond_the_size_of_the_cache_end_the_stream(smolvlm, tmp_path):
    prompt = image_prompt(smolvlm, [picture(60, 40)])
    [item] = prompt.items
    size = 2 * item.num_embeds

    async with connect(tmp_path) as client:
        stream = await start(client, tmp_path, encoder_cache_size=size)
        for identifier in ("a", "b", "c"):
            await stream.write(encoder_inputs([replace(item, identifier=identifier)]))
        error = await error_of(read_all(stream))

    assert error.reason == "INVALID_PLAN"
    assert f"makes {size + item.num_embeds}, and the encoder cache has {size}" in error.message


async def read_all(stream):
    while True:
        await read(stream)


async def test_the_worker_announces_images_with_a_model_that_takes_them(smolvlm, tmp_path):
    async with connect(tmp_path) as client:
        before = await client.info()
        await client.load(tmp_path)
        after = await client.info()

    assert types_pb2.CAPABILITY_MULTIMODAL not in before.capabilities
    assert types_pb2.CAPABILITY_MULTIMODAL in after.capabilities
    assert [(each.modality, each.max_embeds_per_item) for each in after.model.modalities] == [
        ("image", 20),
        ("video", 3072),
    ]
    assert not after.model.uses_mrope


async def test_a_worker_of_language_models_alone_leaves_the_vision_model_out(smolvlm, tmp_path):
    async with connect(tmp_path) as client:
        *_, whole = await client.load(tmp_path)
    async with connect(tmp_path, language_model_only=True) as client:
        *_, text = await client.load(tmp_path)

    assert not text.model.modalities
    assert text.model.num_parameters < whole.model.num_parameters


async def test_the_memory_of_images_is_not_for_keys_and_values(smolvlm, tmp_path):
    async def measure(client, embeds):
        request = worker_pb2.DetermineAvailableMemoryRequest(
            gpu_memory_utilization=1e-3, max_num_batched_tokens=64, max_num_encoder_tokens=embeds
        )
        return (await client.life.DetermineAvailableMemory(request)).available_bytes

    async with connect(tmp_path) as client:
        await client.load(tmp_path)
        assert await measure(client, 2000) < await measure(client, 0)


@pytest.mark.parametrize("level", [1, 2])
async def test_images_after_the_worker_has_slept(level, smolvlm, tmp_path):
    prompt = image_prompt(smolvlm, [picture(60, 40)])

    async with connect(tmp_path) as client:
        await start(client, tmp_path)
        await client.life.Sleep(worker_pb2.WorkerLifecycleServiceSleepRequest(level=level))
        await client.life.WakeUp(worker_pb2.WorkerLifecycleServiceWakeUpRequest())
        stream = await client.open_stream(epoch=2)
        await stream.write(encoder_inputs(prompt.items))
        await read(stream)
        await stream.write(step(1, new_requests=[new_request(0, prompt)]))
        output = await read(stream)

    assert tokens_of(output) == smolvlm.generate(prompt.prepared, 1).token_ids


async def test_a_model_of_text_refuses_the_options_of_images(tmp_path, tiny_llama):
    async with connect(tmp_path) as client:
        await client.load(tiny_llama[0])
        memory = worker_pb2.DetermineAvailableMemoryRequest(
            gpu_memory_utilization=0.5, max_num_batched_tokens=64, max_num_encoder_tokens=8
        )
        errors = [
            await error_of(client.life.DetermineAvailableMemory(memory)),
            await error_of(client.initialize(**LAYOUT)),
        ]
        await client.initialize()
        stream = await client.open_stream()
        await stream.write(encoder_inputs([]))
        errors.append(await error_of(read(stream)))

    assert [error.message for error in errors] == [
        "max_num_encoder_tokens 8: the model on this worker takes only text.",
        "encoder_cache_size 512: the model on this worker takes only text.",
        "encoder_inputs: the model on this worker takes only text.",
    ]
