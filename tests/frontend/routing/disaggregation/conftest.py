"""Fixtures: a producer, a consumer, and an AsyncLLM on both."""

import asyncio

import pytest

from tests.frontend.fakes import FakeEngine, running_engine
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.v1 import types_pb2

PROMPT = "a prompt of more than two blocks of tokens"


@pytest.fixture
def producer(engine):
    engine.kv_role = types_pb2.KV_ROLE_PRODUCER
    return engine


@pytest.fixture
async def consumer(sockets, carrier):
    fake = FakeEngine(sockets / "c", engine_index=1)
    fake.kv_role = types_pb2.KV_ROLE_CONSUMER
    async with running_engine(fake, carrier) as running:
        yield running


class Asking:
    """Sends requests to an AsyncLLM."""

    def __init__(self, llm):
        self.llm = llm

    def start(self, request_id="r", prompt=PROMPT, **params):
        """Return a task whose result is the text of each output, and the last output."""
        options = {name: params.pop(name) for name in ("cache_salt", "data_parallel_rank", "lora_request") if name in params}
        fields = {"max_tokens": 9, "output_kind": RequestOutputKind.CUMULATIVE} | params

        async def collect():
            stream = self.llm.generate(prompt, SamplingParams(**fields), request_id, **options)
            texts, last = {}, None
            async for last in stream:
                texts |= {each.index: each.text for each in last.outputs}
            return [texts[index] for index in sorted(texts)], last

        return asyncio.create_task(collect())


@pytest.fixture
async def connect_pair(producer, consumer, connect):
    """`await connect_pair(**settings)` gives an Asking on both engine cores."""

    async def open_pair(**changes):
        targets = (producer.target, consumer.target)
        fields = {"engine_targets": targets, "engine_admin_targets": (), "min_remote_prefill_tokens": 16} | changes
        return Asking(await connect(**fields))

    return open_pair


@pytest.fixture
async def asking(connect_pair):
    return await connect_pair()
