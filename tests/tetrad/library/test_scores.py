"""LLM.score over answers that are given here."""

import asyncio
from array import array
from types import SimpleNamespace

import pytest

from tetrad.frontend.request.pooling import PooledTensor, PoolingFacts, PoolingParams, PoolingRequestOutput
from tetrad.library.pooling import PoolingMethods
from tetrad.services.errors import InvalidRequest


class Batches:
    """Embeds each text as its number of characters."""

    async def pool(self, prompts, params, options, on_finished, adapters):
        self.params = params
        return [PoolingRequestOutput("r", PooledTensor((1,), array("f", [len(text)])), list(text.encode())) for text in prompts]


@pytest.fixture
def embedder():
    llm = PoolingMethods()
    frontend = SimpleNamespace(pooling=PoolingFacts(("embed",), 1, False, (), (), 0, False))
    llm._running, llm._batches = SimpleNamespace(frontend=frontend, run=asyncio.run), Batches()
    return llm


@pytest.mark.parametrize(
    ("first", "second", "scores"),
    [("a", ["bb", "ccc"], [2, 3]), (["a", "bb"], ["bb", "a"], [2, 2])],
    ids=["more texts than pairs", "as many texts as pairs"],
)
def test_scores_of_embeddings_have_no_prompt(embedder, first, second, scores):
    outputs = embedder.score(first, second, use_tqdm=False)

    assert [output.outputs.score for output in outputs] == scores
    assert [output.prompt_token_ids for output in outputs] == [[], []]


@pytest.mark.parametrize("second", [["bb", 3], [{"prompt": "bb"}], ["bb", None]])
def test_scored_texts_are_strings(embedder, second):
    with pytest.raises(TypeError, match=rf"data_2\[{len(second) - 1}\] must be a string"):
        embedder.score("a", second, use_tqdm=False)


@pytest.mark.parametrize(
    "options", [{"truncation_side": "left", "truncate_prompt_tokens": 5}, {"add_special_tokens": False}], ids=str
)
def test_a_cross_encoder_refuses_options_that_pairs_do_not_have(embedder, options):
    embedder._running.frontend.pooling = PoolingFacts(("classify",), 0, False, (), (), 1, False)

    with pytest.raises(InvalidRequest, match=f"{next(iter(options))} .* for a cross-encoder"):
        embedder.score("a", "bb", use_tqdm=False, tokenization_kwargs=options)


def test_an_embedder_takes_all_options(embedder):
    options = {"truncation_side": "left", "truncate_prompt_tokens": 5, "add_special_tokens": False}

    assert len(embedder.score("a", "bb", use_tqdm=False, tokenization_kwargs=options)) == 1


def test_embeddings_are_as_long_as_asked_for(embedder):
    embedder.score("a", "bb", use_tqdm=False, pooling_params=PoolingParams(dimensions=1))

    assert [each.dimensions for each in embedder._batches.params] == [1, 1]
