"""The first phase fails, or an engine core is lost: the request still has its tokens."""

import asyncio

import pytest
from structlog.testing import capture_logs

from tests.frontend.fakes import TEXT
from tetrad.services.errors import InvalidRequest, Overloaded, Unavailable
from tetrad.v1 import engine_core_pb2, types_pb2

REFUSALS = {
    "a full queue": Overloaded("The queue is full."),
    "a value that it does not know": InvalidRequest("unknown", field="cache_salt"),
    "it drains": Unavailable("It is draining.", reason="DRAINING"),
    "its worker is lost": Unavailable("Its worker is lost.", reason="WORKER_LOST"),
}


@pytest.mark.parametrize("why", REFUSALS)
async def test_a_producer_that_refuses(asking, producer, consumer, why):
    producer.reject = lambda _: REFUSALS[why]

    assert (await asking.start())[0] == [TEXT[:9]]
    assert not consumer.requests[0].HasField("kv_transfer")


@pytest.mark.parametrize("when", ["computing", "waiting"])
async def test_a_producer_that_dies(asking, producer, consumer, when):
    producer.pause()
    tasks = [asking.start(f"r{i}", n=i + 1) for i in range(3)]
    await producer.until(lambda: len(producer.running) == 3)

    await (producer.kill() if when == "computing" else producer.tell(engine_core_pb2.ENGINE_NOTICE_KIND_WORKER_LOST))

    assert [texts for texts, _ in await asyncio.gather(*tasks)] == [[TEXT[:9]] * n for n in (1, 2, 3)]
    assert len(consumer.requests) == 6
    assert not any(each.HasField("kv_transfer") for each in consumer.requests)


async def test_a_producer_that_drains_finishes_what_it_has_begun(asking, producer, consumer):
    producer.pause()
    task = asking.start()
    await producer.until(lambda: producer.running)
    await producer.tell(engine_core_pb2.ENGINE_NOTICE_KIND_DRAINING)
    await asyncio.sleep(0.05)
    await producer.allow(None)

    await task
    await asking.start("next")

    assert [each.HasField("kv_transfer") for each in consumer.requests] == [True, False]
    assert len(producer.requests) == 1


async def test_a_producer_that_is_slow(connect_pair, producer, consumer):
    asking = await connect_pair(remote_prefill_timeout_s=0.2)
    producer.pause()

    assert (await asking.start())[0] == [TEXT[:9]]
    await producer.until(lambda: producer.aborted == [producer.requests[0].request_id])
    # It gets no prompts for as long a time.
    assert (await asking.start("next"))[0] == [TEXT[:9]]
    assert len(producer.requests) == 1
    await asyncio.sleep(0.2)
    await producer.allow(None)
    await asking.start("later")
    assert len(producer.requests) == 2


async def test_a_producer_that_keeps_no_blocks(asking, producer, consumer):
    producer.keeps_blocks = False

    with capture_logs() as logs:
        assert (await asking.start())[0] == [TEXT[:9]]

    assert not consumer.requests[0].HasField("kv_transfer")
    [line] = [line for line in logs if line["event"] == "request.not_prefilled"]
    assert line["reason"] == "the engine core kept no blocks: those that are kept fill half of its KV cache"


async def test_a_slow_producer_that_answers_gets_all_prompts_again(connect_pair, producer, consumer):
    """Also if it keeps no blocks."""
    asking = await connect_pair(remote_prefill_timeout_s=0.2)
    producer.pause()
    await asking.start()
    producer.keeps_blocks = False
    await producer.allow(None)
    await asyncio.sleep(0.2)

    for request_id in ("first", "second", "third"):
        await asking.start(request_id)

    assert len(producer.requests) == 4


async def test_an_abort_ends_the_first_phase(asking, producer, consumer):
    producer.pause()
    task = asking.start(n=2)
    await producer.until(lambda: producer.running)

    await asking.llm.abort("r")

    _, last = await task
    assert last.outputs[0].finish_reason == "abort"
    await producer.until(lambda: producer.aborted == [producer.requests[0].request_id])
    assert not consumer.requests
    assert not asking.llm.num_unfinished_requests


async def test_a_timeout_of_the_request_ends_the_first_phase(connect_pair, producer, consumer):
    asking = await connect_pair(request_timeout_s=0.3)
    producer.pause()

    with pytest.raises(Exception, match=r"0\.3"):
        await asking.start()

    await producer.until(lambda: producer.aborted)
    assert not consumer.requests


async def test_a_consumer_that_refuses_the_address_of_the_blocks_computes_the_prompt(asking, producer, consumer):
    refusal = InvalidRequest("kv_transfer names the worker '10.0.0.7:7100'; kv-peers allows unix:*.", field="kv_transfer")
    consumer.reject = lambda request: refusal if request.HasField("kv_transfer") else None

    assert (await asking.start())[0] == [TEXT[:9]]
    assert [each.HasField("kv_transfer") for each in consumer.requests] == [True, False]


async def test_a_consumer_that_dies_is_replaced_by_the_producer(asking, producer, consumer):
    consumer.pause()
    task = asking.start()
    await consumer.until(lambda: consumer.running)
    await consumer.take(4)

    await consumer.kill()

    assert (await task)[0] == [TEXT[:9]]
    assert not producer.requests[-1].HasField("kv_transfer")
    assert (await asking.start("next"))[0] == [TEXT[:9]]
    assert producer.requests[-1].sampling_params.max_tokens == 9


async def test_a_consumer_that_dies_during_the_first_phase(asking, producer, consumer):
    producer.pause()
    task = asking.start()
    await producer.until(lambda: producer.running)

    await consumer.kill()
    await asyncio.sleep(0.1)
    await producer.allow(None)

    assert (await task)[0] == [TEXT[:9]]
    assert [each.sampling_params.max_tokens for each in producer.requests] == [1, 9]
    assert not producer.requests[1].HasField("kv_transfer")


async def test_without_a_consumer_producers_run_requests_wholly(connect_pair, producer, consumer):
    consumer.kv_role = types_pb2.KV_ROLE_PRODUCER
    asking = await connect_pair()

    assert (await asking.start())[0] == [TEXT[:9]]
    assert [each.sampling_params.max_tokens for each in producer.requests + consumer.requests] == [9]
