"""Errors of pooling routes name the field of the body."""

import pytest

from tests.frontend.llm.test_pooling_messages import engine  # noqa: F401 - the fixture

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
