"""A request of a frontend with producers and consumers: a producer computes its prompt, then a consumer generates."""

import asyncio

import pytest

from tests.frontend.fakes import TEXT
from tests.frontend.fakes.engine import LEASE_ID
from tests.frontend.fakes.images import IMAGES
from tests.frontend.routing.disaggregation.conftest import PROMPT
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.services.errors import UnsupportedArgument
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.v1 import engine_core_pb2, types_pb2


async def test_the_producer_computes_the_prompt_and_the_consumer_generates(asking, producer, consumer):
    [text], _ = await asking.start(seed=5, temperature=0.5, logprobs=2, cache_salt="salt", stop=["zzz"], min_tokens=3)

    [probe], [sent] = producer.requests, consumer.requests
    assert text == TEXT[:9]
    assert (probe.sampling_params.max_tokens, probe.kv_transfer.do_remote_decode) == (1, True)
    assert not probe.sampling_params.HasField("logprobs")
    assert probe.sampling_params.min_tokens == 0
    assert (probe.prompt_token_ids, probe.cache_salt) == (sent.prompt_token_ids, "salt")
    assert (sent.seed, sent.sampling_params.temperature, sent.sampling_params.min_tokens) == (5, 0.5, 3)
    assert (sent.kv_transfer.do_remote_prefill, sent.kv_transfer.lease_id) == (True, LEASE_ID)
    assert (sent.kv_transfer.remote_engine_id, sent.kv_transfer.remote_request_id) == ("engine-0", probe.request_id)


async def test_the_consumer_has_the_request_only_when_the_prompt_is_computed(asking, producer, consumer):
    producer.pause()
    task = asking.start()
    await producer.until(lambda: producer.running)

    assert not consumer.requests
    await producer.allow(None)
    assert (await task)[0] == [TEXT[:9]]


async def test_n_outputs_share_one_first_phase(asking, producer, consumer):
    texts, _ = await asking.start(n=3)

    assert texts == [TEXT[:9]] * 3
    assert len(producer.requests) == 1
    assert [each.kv_transfer.lease_id for each in consumer.requests] == [LEASE_ID] * 3


async def test_the_request_counts_once(asking, producer, consumer):
    producer.times = consumer.times = (1.0, 2.0, 4.0)
    consumer.num_external_tokens = 16 * (len(PROMPT) // 16)
    producer.num_cached_tokens = 16

    _, last = await asking.start()

    assert (last.metrics.num_generation_tokens, last.num_cached_tokens) == (9, 16)
    assert last.kv_transfer_params is None
    assert (last.metrics.queued_time_s, last.metrics.prefill_time_s) == (2.0, 4.0)
    page = asking.llm.metrics.render().decode()
    assert 'tetrad:generation_tokens_total{model_name=""} 9.0' in page
    assert 'tetrad:request_prompt_tokens_count{model_name=""} 1.0' in page
    assert 'tetrad:remote_prefills_total{model_name="",outcome="done"} 1.0' in page


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"prompt": "short"}, "less than a block"),
        ({"prompt": {"prompt_token_ids": [1] * 16}}, "its last token is computed in any case"),
        ({"prompt_logprobs": 1}, "each token of the prompt is computed"),
        ({"prompt_logprob_token_ids": [1]}, "each token of the prompt is computed"),
        ({"skip_reading_prefix_cache": True}, "it asks for no blocks"),
        ({"data_parallel_rank": 1}, "it is pinned"),
        ({"extra_args": {"kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": "x"}}}, "it has blocks"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_a_request_that_needs_no_producer_goes_to_a_consumer_at_once(asking, producer, consumer, changes, why):
    await asking.start(**changes)

    assert why
    assert (len(producer.requests), len(consumer.requests)) == (0, 1)
    assert consumer.requests[0].kv_transfer.remote_engine_id == ("x" if "extra_args" in changes else "")


@pytest.mark.parametrize("changes", [{}, {"prompt_logprobs": 1}, {"skip_reading_prefix_cache": True}])
async def test_a_single_token_is_generated_where_its_prompt_is_computed(asking, producer, consumer, changes):
    texts, _ = await asking.start(max_tokens=1, n=2, **changes)

    assert texts == [TEXT[:1]] * 2
    assert (len(producer.requests), len(consumer.requests)) == (2, 0)
    assert not producer.requests[0].HasField("kv_transfer")


async def test_a_prompt_below_the_threshold_is_computed_by_the_consumer(connect_pair, producer, consumer):
    asking = await connect_pair(min_remote_prefill_tokens=33)

    await asking.start(prompt={"prompt_token_ids": [1] * 48})
    await asking.start(prompt={"prompt_token_ids": [1] * 49})

    assert [len(unpack_u32(each.prompt_token_ids)) for each in producer.requests] == [49]
    assert len(consumer.requests) == 2


async def test_a_prompt_that_the_consumer_has_cached_needs_no_producer(connect_pair, producer, consumer):
    asking = await connect_pair(engine_admin_targets=(producer.target, consumer.target))
    held = list(range(48))
    block = engine_core_pb2.KvBlocksStored(block_hashes=[b"a", b"b", b"c"], token_ids=pack_u32(held), block_size=16)
    event = engine_core_pb2.KvCacheEvent(stored=block)
    consumer.kv_batches.put_nowait(engine_core_pb2.SubscribeKvEventsResponse(sequence_number=1, events=[event], snapshot=True))
    [member] = [each for each in asking.llm.backends.engines._members if each.endpoint.target == consumer.target]
    async with asyncio.timeout(10):
        while not len(member.prefixes):  # noqa: ASYNC110 - a memory sends no signal
            await asyncio.sleep(0.005)

    await asking.start(prompt={"prompt_token_ids": [*held, 7, 7]})
    await asking.start(prompt={"prompt_token_ids": [*held, *[7] * 17]})

    assert [len(unpack_u32(each.prompt_token_ids)) for each in producer.requests] == [65]
    assert len(consumer.requests) == 2


async def test_a_client_s_proxy_may_use_the_same_producers(asking, producer, consumer):
    _, last = await asking.start(max_tokens=1, extra_args={"kv_transfer_params": {"do_remote_decode": True}})

    assert (len(producer.requests), len(consumer.requests)) == (1, 0)
    assert last.kv_transfer_params["remote_request_id"] == producer.requests[0].request_id


async def test_a_pinned_request_needs_the_role_of_its_engine_core(asking):
    with pytest.raises(UnsupportedArgument, match="producer or both; that of data_parallel_rank 1 has another role"):
        await asking.start(data_parallel_rank=1, extra_args={"kv_transfer_params": {"do_remote_decode": True}})


async def test_engine_cores_of_role_both_have_no_phases(connect_pair, producer, consumer):
    producer.kv_role = consumer.kv_role = types_pb2.KV_ROLE_BOTH
    asking = await connect_pair()

    await asking.start()

    assert len(producer.requests) + len(consumer.requests) == 1


async def test_both_phases_have_the_prompt_s_images(connect_pair, producer, consumer, tokenizer):
    tokenizer.modalities = producer.modalities = consumer.modalities = IMAGES
    asking = await connect_pair()
    image = {"multi_modal_data": {"image": [b"a file of twenty-four B."]}}

    await asking.start(prompt={"prompt": "what is this? <image> .", **image})

    [probe], [sent] = producer.requests, consumer.requests
    assert [each.identifier for each in probe.mm_features] == [each.identifier for each in sent.mm_features]
    assert probe.mm_features[0].tensors["pixel_values"].inline == sent.mm_features[0].tensors["pixel_values"].inline
    assert sent.kv_transfer.do_remote_prefill


async def test_both_phases_have_the_request_s_adapter(connect_pair, producer, consumer):
    producer.supports_lora = consumer.supports_lora = True
    asking = await connect_pair()

    await asking.start(lora_request=LoRARequest("sql", 3, "/adapters/sql"))

    names = [each.lora_request.name for each in (producer.requests[0], consumer.requests[0])]
    assert names == ["sql", "sql"]
