"""all-MiniLM-L6-v2 itself against transformers, through the library, if the cache has it: `make embeddings-test` fetches it."""

import os
import random

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import tetrad
from tests.one_process_llm import services_in_process
from tetrad.services.hub.model_files import CacheSettings

_CACHED = CacheSettings().directory() / "models" / "all-minilm-l6-v2"
MODEL = os.environ.get("TEST_MINILM") or (str(_CACHED) if _CACHED.is_dir() else "")
WORDS = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "thing",
    "life",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "Paris",
    "naïve",
    "东京",
    "re-embedding",
]

pytestmark = pytest.mark.skipif(not MODEL, reason="all-MiniLM-L6-v2 is not in the cache (make embeddings-test fetches it)")


def text_of(num_words, rng):
    return " ".join(rng.choices(WORDS, k=num_words)) + "."


@pytest.fixture(scope="module")
def texts():
    """24 texts, the longest of which are cut at 256 tokens."""
    rng = random.Random(0)
    return [text_of(number, rng) for number in (1, 250, *(rng.randint(1, 250) for _ in range(22)))]


@pytest.fixture(scope="module")
def expected(texts):
    """What sentence-transformers computes: the mean of the tokens' rows, normalised."""
    tokenizer, model = AutoTokenizer.from_pretrained(MODEL), AutoModel.from_pretrained(MODEL).eval()
    embeddings = []
    for text in texts:
        with torch.no_grad():
            rows = model(**tokenizer(text, truncation=True, max_length=256, return_tensors="pt")).last_hidden_state[0]
        embeddings.append(torch.nn.functional.normalize(rows.mean(dim=0), dim=0).numpy())
    return np.stack(embeddings)


def test_embeddings_of_texts_of_all_lengths_equal_those_of_transformers_alone_and_in_a_batch(texts, expected):
    options = {"use_tqdm": False, "tokenization_kwargs": {"truncate_prompt_tokens": -1}}
    with services_in_process(), tetrad.LLM(MODEL, device="cpu") as llm:
        together = np.array([output.outputs.embedding for output in llm.embed(texts, **options)])
        alone = np.array([llm.embed(text, **options)[0].outputs.embedding for text in texts[:8]])

    np.testing.assert_allclose(together, expected, atol=1e-4)
    assert (together * expected).sum(axis=1).min() >= 0.99999
    np.testing.assert_array_equal(alone, together[:8])
