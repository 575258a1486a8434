"""Late interaction: MaxSim over the embeddings of tokens, and pairs scored by it."""

from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from tetrad.frontend.llm.scoring import max_sims, score_pairs
from tetrad.frontend.request.pooling import PooledTensor, PoolingFacts, PoolingRequestOutput

WIDTH = 8


def matrix(seed, num_rows):
    values = np.random.default_rng(seed).standard_normal((num_rows, WIDTH)).astype(np.float32)
    return values, PooledTensor(values.shape, array("f", values.tobytes()))


def test_each_row_of_the_query_takes_its_best_row_of_the_document():
    query, pooled_query = matrix(1, 5)
    document, pooled_document = matrix(2, 9)

    [score] = max_sims([(pooled_query, pooled_document)])

    assert score == pytest.approx(sum(max(float(q @ d) for d in document) for q in query), rel=1e-5)


async def test_a_model_of_token_embeddings_scores_each_text_once():
    asked = []

    async def run(prompts, params):
        asked.extend(prompts)
        assert {each.task for each in params} == {"token_embed"}
        return [PoolingRequestOutput("r", matrix(len(text), len(text))[1], [1]) for text in prompts]

    facts = PoolingFacts(("token_embed",), WIDTH, False, (), (), 0, False)
    llm = SimpleNamespace(pooling=facts)

    scores = await score_pairs(llm, [("query", "one"), ("query", "second")], run)

    assert asked == ["query", "one", "second"]
    assert scores.values == max_sims([(matrix(5, 5)[1], matrix(3, 3)[1]), (matrix(5, 5)[1], matrix(6, 6)[1])])
