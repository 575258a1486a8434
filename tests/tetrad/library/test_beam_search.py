"""Beam search: the rules against transformers' own on a tiny random model, and errors of bad parameters."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tetrad.frontend.llm.beam_search import BeamSearchParams, beam_search
from tetrad.frontend.llm.beams import Beams
from tetrad.frontend.request.outputs import Logprob
from tetrad.services.errors import InvalidRequest

VOCAB = 48
PROMPT = [5, 9, 11]
# Tokens that this model likes, so that beams end early.
EOS_SETS = [(), (32,), (44, 7, 32)]


@pytest.fixture(scope="module")
def model():
    """A model small enough to ask for every candidate, with next tokens that are neither certain nor all alike."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def reference(model, *, width, max_tokens, eos, length_penalty, early_stopping):
    """Return (generated ids, score) of each sequence that transformers finds."""
    config = GenerationConfig(
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        max_new_tokens=max_tokens,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        eos_token_id=list(eos) or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    ids = torch.tensor([PROMPT])
    found = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return [
        (trimmed(sequence[len(PROMPT) :].tolist(), eos), score)
        for sequence, score in zip(found.sequences, found.sequences_scores.tolist(), strict=True)
    ]


def trimmed(ids, eos):
    """Return the ids without the padding behind the first EOS."""
    end = next((place + 1 for place, token_id in enumerate(ids) if token_id in eos), len(ids))
    return ids[:end]


def search(model, *, width, max_tokens, eos, length_penalty, early_stopping):
    beams = Beams(
        width,
        max_tokens=max_tokens,
        eos_token_ids=frozenset(eos),
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    while not beams.done:
        ids = torch.tensor([PROMPT + beam.token_ids for beam in beams.running])
        with torch.no_grad():
            top = model(ids).logits[:, -1].log_softmax(-1).topk(beams.num_candidates)
        beams.step(
            [
                {token_id: Logprob(value) for token_id, value in zip(row_ids, values, strict=True)}
                for row_ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
            ]
        )
    return [(each.beam.token_ids, each.score) for each in beams.finished]


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("eos", EOS_SETS, ids=lambda eos: f"{len(eos)}-eos")
def test_sequences_and_scores_are_those_of_transformers(model, eos, length_penalty, early_stopping):
    for width, max_tokens in itertools.product((2, 3, 6), (1, 9)):
        options = {
            "width": width,
            "max_tokens": max_tokens,
            "eos": eos,
            "length_penalty": length_penalty,
            "early_stopping": early_stopping,
        }

        expected = reference(model, **options)
        found = search(model, **options)

        assert [ids for ids, _ in found] == [ids for ids, _ in expected], options
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-4), options


def test_the_table_has_sequences_of_many_lengths(model):
    """Otherwise equality with transformers would say little."""
    found = [
        len(ids)
        for penalty in (-1.0, 1.0)
        for ids, _ in search(model, width=6, max_tokens=9, eos=(44, 7, 32), length_penalty=penalty, early_stopping="never")
    ]

    assert len(set(found)) > 3


def test_a_search_of_width_one_is_greedy(model):
    [(ids, _)] = search(model, width=1, max_tokens=6, eos=(), length_penalty=1.0, early_stopping=False)

    greedy = model.generate(torch.tensor([PROMPT]), attention_mask=torch.ones(1, 3), max_new_tokens=6, do_sample=False)
    assert ids == greedy[0, len(PROMPT) :].tolist()


async def test_more_beams_than_the_vocabulary_can_feed_are_refused():
    llm = SimpleNamespace(
        tokenizer_info=SimpleNamespace(vocab_size=20, eos_token_ids=frozenset({1, 2})),
        engine_info=SimpleNamespace(vocab_size=11, logprobs_mode="raw_logprobs"),
    )

    with pytest.raises(InvalidRequest, match=r"beam_width=4 needs the 12 most likely tokens .* the vocabulary has 11"):
        await beam_search(llm, "id", [5], BeamSearchParams(beam_width=4, max_tokens=3))


def test_an_aborted_search_ends_with_the_beams_it_has():
    beams = Beams(2, max_tokens=5, eos_token_ids=frozenset(), length_penalty=1.0, early_stopping=False)
    beams.step([{1: Logprob(-0.1), 2: Logprob(-0.5), 3: Logprob(-2.0), 4: Logprob(-3.0)}])

    beams.abort()

    assert [(each.beam.token_ids, each.reason) for each in beams.finished] == [([1], "abort"), ([2], "abort")]
    assert beams.done


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"beam_width": 0}, "beam_width must be at least 1, got 0."),
        ({"beam_width": 1025}, "beam_width must be at most 1024, got 1025."),
        ({"beam_width": 2.0}, "beam_width must be an integer, got 2.0."),
        ({"beam_width": True}, "beam_width must be an integer, got True."),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0."),
        ({"max_tokens": None}, "max_tokens must be an integer, got None."),
        ({"temperature": -0.5}, "temperature must be non-negative, got -0.5."),
        ({"temperature": "0"}, "temperature must be a number, got '0'."),
        ({"length_penalty": float("nan")}, "length_penalty must be in [-50, 50], got nan."),
        ({"length_penalty": 51}, "length_penalty must be in [-50, 50], got 51."),
        ({"early_stopping": "always"}, "early_stopping must be True, False or \"never\", got 'always'."),
    ],
)
def test_a_bad_parameter_is_refused_with_its_name_and_limit(fields, text):
    with pytest.raises(InvalidRequest) as caught:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **fields})

    assert caught.value.message == text
    assert caught.value.field in fields
