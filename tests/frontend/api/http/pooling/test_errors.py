"""Errors of pooling routes name the field of the body."""

import pytest

from tests.frontend.conftest import make_settings, running_frontend
from tests.frontend.fakes import running_engine
from tests.frontend.fakes.pooling_engine import PoolingEngine
from tetrad.services.rpc.carrier import GRPC
from tetrad.v1 import types_pb2

LONG = "x" * 600


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/embeddings", {"input": LONG}, "input"),
        ("/v1/embeddings", {"input": ["a", ""]}, "input"),
        ("/v1/embeddings", {"input": [[5, 4000]]}, "input"),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("/v1/embeddings", {"input": "a", "dimensions": 2}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "base64", "embed_dtype": "float16"}, "embed_dtype"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "base64", "endianness": "big"}, "endianness"),
        ("/pooling", {"input": "a", "encoding_format": "base64", "embed_dtype": "bfloat16"}, "embed_dtype"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "base64", "output_dtype": "int8"}, "output_dtype"),
        ("/v1/embeddings", {"input": "a", "output_dimension": 2}, "output_dimension"),
        ("/v1/embeddings", {"input": "a", "normalize": False}, "normalize"),
        ("/v1/embeddings", {"input": "a", "padding": "max_length"}, "padding"),
        ("/v1/embeddings", {"input": "a", "cache_salt": ""}, "cache_salt"),
        ("/pooling", {"input": "a", "softmax": True}, "softmax"),
        ("/classify", {"input": "a", "activation": False}, "activation"),
        ("/score", {"text_1": "a", "text_2": "b", "mm_processor_kwargs": {"size": 2}}, "mm_processor_kwargs"),
        ("/rerank", {"query": "a", "documents": ["b"], "media_io_kwargs": {"image": {}}}, "media_io_kwargs"),
        ("/pooling", {"input": ["a", LONG]}, "input"),
        ("/v2/embed", {"texts": [LONG], "truncate": "NONE"}, "texts"),
        ("/v2/embed", {"inputs": [{"content": [{"type": "text", "text": LONG}]}], "truncate": "NONE"}, "inputs"),
        ("/v2/embed", {"inputs": [{"content": []}]}, "inputs"),
        ("/v2/embed", {"inputs": []}, "inputs"),
        ("/v2/embed", {"texts": []}, "texts"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 2}, "output_dimension"),
    ],
)
async def test_an_error_names_the_field(http, path, body, field):
    answer = await http.post(path, json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


async def test_values_of_unsupported_fields_that_change_nothing_are_taken(http):
    body = {"input": "hello", "output_dtype": "float", "normalize": None, "padding": "do_not_pad", "mm_processor_kwargs": {}}

    assert (await http.post("/v1/embeddings", json=body)).status_code == 200


class CrossEncoder(PoolingEngine):
    """Serves a model that reads both texts of a pair together."""

    def _info(self):
        info = super()._info()
        info.pooling.CopyFrom(types_pb2.PoolingInfo(tasks=["classify"], num_labels=1))
        return info


@pytest.fixture
async def cross_encoder(sockets, tokenizer):
    async with (
        running_engine(CrossEncoder(sockets / "c"), GRPC) as fake,
        running_frontend(make_settings(tokenizer, fake)) as frontend,
    ):
        yield frontend.http


@pytest.mark.parametrize(
    ("path", "body", "field", "text"),
    [
        ("/score", {"text_1": "a", "text_2": ["b", ""]}, "text_2", "Input 1: "),
        ("/score", {"queries": ["a", ""], "documents": ["b", "c"]}, "queries", "Input 1: "),
        ("/score", {"queries": "a", "items": ["b", "x" * 100_000]}, "items", "Input 1: "),
        ("/score", {"data_1": "a", "data_2": "x" * 100_000}, "data_2", "This model's maximum context length"),
        ("/score", {"queries": ["a", "b"], "documents": ["c", "d", "e"]}, "queries", "Input lengths must be"),
        ("/score", {"text_1": "a", "text_2": ["b"] * 3000}, "text_2", "text_2 may hold at most 2048 texts, got 3000."),
        ("/score", {"queries": "a", "items": ["b"] * 3000}, "items", "items may hold at most 2048 texts, got 3000."),
        ("/rerank", {"query": "a", "documents": ["b"] * 3000}, "documents", "documents may hold at most 2048 texts, got 3000."),
        ("/rerank", {"query": "", "documents": ["b"]}, "query", ""),
        ("/rerank", {"query": "a", "documents": ["b", ""]}, "documents", "Input 1: "),
        ("/rerank", {"query": "a", "documents": ["b", ""], "max_tokens_per_doc": 5}, "documents", ""),
        ("/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 600}, "max_tokens_per_doc", ""),
        ("/rerank", {"query": "a", "documents": ["b"], "truncation_side": "left"}, "truncation_side", ""),
    ],
)
async def test_an_error_names_the_field_of_a_pair(cross_encoder, path, body, field, text):
    answer = await cross_encoder.post(path, json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
    assert answer.json()["error"]["message"].startswith(text)
