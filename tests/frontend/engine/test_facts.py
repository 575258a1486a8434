"""Decoding of an engine core's EngineInfo."""

import pytest

from tetrad.frontend.engine.facts_wire import decode_engine_info
from tetrad.v1 import engine_core_pb2, types_pb2


@pytest.mark.parametrize(("said", "tokens"), [(0, 1600), (9000, 9000)])
def test_the_tokens_of_a_kv_cache_are_those_of_its_blocks_unless_the_engine_core_says_otherwise(said, tokens):
    """Sliding windows hold more, several groups fewer."""
    message = engine_core_pb2.EngineInfo(num_gpu_blocks=100, block_size=16, kv_cache_tokens=said)

    assert decode_engine_info(message).kv_cache_tokens == tokens


def test_capabilities_are_names_and_those_of_a_later_release_are_numbers():
    message = engine_core_pb2.EngineInfo(capabilities=[types_pb2.CAPABILITY_LORA, 99])

    assert decode_engine_info(message).capabilities == ("lora", "99")
