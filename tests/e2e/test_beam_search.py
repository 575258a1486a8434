"""Beam search through the whole stack: sequences and scores are those of transformers, on the same weights."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.e2e.tiny_model import save_tiny_model
from tests.one_process_llm import one_process_llm
from tests.toy_tokenizer import EOS_IDS, SPECIALS
from tetrad import BeamSearchParams, SamplingParams
from tetrad.services.errors import InvalidRequest

ENDING = "Hello"
"""Some of the sequences that continue it end with EOS within the limit, those of the next text do not."""
TEXT = "The three primary colours are"


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """A tiny model that ends some texts soon: its logits of EOS differ more than the others."""
    path = save_tiny_model(tmp_path_factory.mktemp("beams"))
    weights = load_file(path / "model.safetensors")
    weights["lm_head.weight"][list(EOS_IDS)] *= 1.5
    weights["lm_head.weight"][268:] = 0  # the tokenizer does not have these, so no prompt may
    save_file(weights, path / "model.safetensors")
    return path


@pytest.fixture(scope="module")
def llm(directory):
    with one_process_llm(directory, dtype="float32", max_model_len=256, block_size=1, num_gpu_blocks_override=8192) as llm:
        yield llm


@pytest.fixture(scope="module")
def prompts(llm) -> list[list[int]]:
    tokenizer = llm.get_tokenizer()
    return [tokenizer.encode(ENDING), tokenizer.encode(TEXT)]


@pytest.fixture(scope="module")
def model(directory):
    # In float64 (but for its norms and angles), so that its own rounding takes next to nothing of the tolerance.
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval().double()


def reference(model, prompt: list[int], params: BeamSearchParams, eos: list[int]) -> list[tuple[list[int], float]]:
    """Return (prompt and generated ids, score) of each sequence that transformers finds."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        do_sample=False,
        max_new_tokens=params.max_tokens,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=None if params.ignore_eos else eos,
        pad_token_id=eos[0],
        return_dict_in_generate=True,
        output_scores=True,
    )
    return [
        (ids if params.ignore_eos else until_eos(ids, len(prompt), eos), score)
        for ids, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True)
    ]


def until_eos(ids: list[int], start: int, eos: list[int]) -> list[int]:
    end = next((place + 1 for place in range(start, len(ids)) if ids[place] in eos), len(ids))
    return ids[:end]


# All kinds of penalties and early stopping, without services: tests/tetrad/library/test_beam_search.py.
@pytest.mark.parametrize(
    "params",
    [
        pytest.param(BeamSearchParams(beam_width=4, max_tokens=14), id="defaults"),
        pytest.param(
            BeamSearchParams(beam_width=3, max_tokens=7, length_penalty=-0.6, early_stopping="never"),
            id="short",
        ),
        pytest.param(
            BeamSearchParams(beam_width=2, max_tokens=5, length_penalty=2.0, early_stopping=True, ignore_eos=True),
            id="ignoring-eos",
        ),
        # Needs more candidates of each step than max_logprobs allows to requests.
        pytest.param(BeamSearchParams(beam_width=12, max_tokens=2), id="wide"),
    ],
)
def test_sequences_and_scores_are_those_of_transformers(llm, prompts, model, params):
    eos = sorted(llm._running.frontend.tokenizer_info.eos_token_ids)

    outputs = llm.beam_search(prompts, params)

    for prompt, output in zip(prompts, outputs, strict=True):
        expected = reference(model, prompt, params, eos)
        assert [each.tokens for each in output.sequences] == [ids for ids, _ in expected]
        assert [each.score for each in output.sequences] == pytest.approx([score for _, score in expected], rel=1e-5, abs=1e-4)


def test_a_sequence_tells_how_it_ended_and_why_it_ranks(llm, prompts):
    tokenizer = llm.get_tokenizer()

    [output] = llm.beam_search([prompts[0]], BeamSearchParams(beam_width=4, max_tokens=14))

    assert {each.finish_reason for each in output.sequences} >= {"stop"}
    for each in output.sequences:
        generated = each.tokens[len(prompts[0]) :]
        assert each.cum_logprob == pytest.approx(sum(p[i].logprob for p, i in zip(each.logprobs, generated, strict=True)))
        assert each.score == pytest.approx(each.cum_logprob / len(generated))
        stopped = each.finish_reason == "stop"
        assert each.stop_reason == (generated[-1] if stopped else None)
        assert each.text == tokenizer.decode(each.tokens[:-1] if stopped else each.tokens)
        assert each.logprobs[0][generated[0]].decoded_token == tokenizer.decode(generated[:1])


def test_the_text_keeps_its_eos_if_asked(llm, prompts):
    params = BeamSearchParams(beam_width=2, max_tokens=14, include_stop_str_in_output=True)

    [output] = llm.beam_search([prompts[0]], params)

    stopped = [each for each in output.sequences if each.finish_reason == "stop"]
    assert stopped
    assert all(each.text.endswith(tuple(SPECIALS)) for each in stopped)


def test_prompts_of_every_form_give_the_same_whatever_runs_beside_them(llm, prompts):
    params = BeamSearchParams(beam_width=2, max_tokens=4)
    ids = prompts[1]

    outputs = llm.beam_search([TEXT, ids, {"prompt": TEXT}, {"prompt_token_ids": ids}], params, concurrency_limit=2)

    assert len({tuple(each.sequences[0].tokens) for each in outputs}) == 1


def test_the_limit_on_logprobs_still_holds_for_requests(llm):
    with pytest.raises(InvalidRequest, match="Requested sample logprobs of 24"):
        llm.generate(TEXT, SamplingParams(logprobs=24), use_tqdm=False)


def test_with_blocks_of_one_token_a_step_computes_one_token_per_beam(llm):
    """What the beams share comes from the prefix cache."""
    prompt = [list(range(100, 200))]
    before = num_computed_tokens(llm)

    llm.beam_search(prompt, BeamSearchParams(beam_width=3, max_tokens=20, ignore_eos=True))

    assert num_computed_tokens(llm) - before == 100 + 19 * 3


def num_computed_tokens(llm) -> int:
    counters = {metric.name: metric.value for metric in llm.get_metrics() if metric.name.startswith("tetrad:prefix_cache_")}
    return counters["tetrad:prefix_cache_queries"] - counters["tetrad:prefix_cache_hits"]
