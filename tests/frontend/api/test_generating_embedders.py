"""A generative model that also makes embeddings: every API names it as a model that generates."""

import pytest

from tests.frontend import fakes
from tetrad.frontend.api.gateways.openengine_control import facts as openengine
from tetrad.frontend.api.gateways.vllm_engine import facts as vllm_engine
from tetrad.v1 import types_pb2


class BothEngine(fakes.FakeEngine):
    def _info(self):
        info = super()._info()
        info.pooling.CopyFrom(types_pb2.PoolingInfo(tasks=["embed"], embedding_size=5, generates=True))
        return info


@pytest.fixture
def make_engine():
    return BothEngine


async def test_ollama_clients_see_both_capabilities(frontend):
    shown = (await frontend.http.post("/api/show", json={"model": "fake"})).json()

    assert {"completion", "embedding"} <= set(shown["capabilities"])


async def test_gateways_see_a_model_that_generates(llm):
    of_vllm, of_openengine = vllm_engine.model_info(llm), openengine.model_info(llm)

    assert (of_vllm.is_generation, of_vllm.max_req_input_len) == (True, 511)
    assert of_openengine.supports_token_ids_input
    assert (of_openengine.HasField("generation"), of_openengine.max_output_tokens) == (True, 511)
