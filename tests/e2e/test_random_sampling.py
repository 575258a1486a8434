"""Random valid sampling parameters against a tiny model on the CPU: rows fail alone, and tokens do not depend on the batch.

The simulated device cannot show this: none of its rows ever fails. `make test` sends a few batches, the same ones each time;
`make fuzz` as many as TEST_FUZZ_EXAMPLES says, others each time.
"""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.e2e.conftest import ONE_TOKENIZER
from tests.e2e.tiny_model import save_tiny_model
from tests.toy_tokenizer import EOS_IDS, toy_tokenizer

EXAMPLES = int(os.environ.get("TEST_FUZZ_EXAMPLES", "0"))
NUM_BATCHES = EXAMPLES or 15
MOST_TOKENS = 20
EOS = EOS_IDS[0]


@pytest.fixture(scope="module")
def server(start_module_server, tmp_path_factory):
    """A stack over the tiny model. It computes prompts in chunks, and a batch may need more KV blocks than there are."""
    directory = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    return start_module_server(
        *ONE_TOKENIZER,
        str(directory), "--device", "cpu", "--threads", "1", "--max-model-len", "128", "--num-gpu-blocks-override", "20",
        "--block-size", "8", "--max-num-batched-tokens", "64", "--max-logprobs", "-1", "--reasoning-parser", "deepseek_r1",
    )  # fmt: skip


TOKENIZER = Tokenizer.from_str(toy_tokenizer())
ID_OF, NUM_IDS = TOKENIZER.token_to_id, TOKENIZER.get_vocab_size()
ANY_ID = st.integers(0, NUM_IDS - 1)
# Few, so that parameters speak of the same tokens, and at times leave none.
FEW_IDS = st.sampled_from([*EOS_IDS, ID_OF("a"), ID_OF("b")])
IDS = st.lists(FEW_IDS, min_size=1, max_size=2) | st.lists(ANY_ID, min_size=1, max_size=4)
TEXTS = st.lists(st.sampled_from(["a", "b"]) | st.text("abcde \nü{<", min_size=1, max_size=3), min_size=1, max_size=3)
PROMPTS = st.text("abc de{}<\n", min_size=1, max_size=70) | st.lists(ANY_ID, min_size=1, max_size=70)
CONSTRAINTS = st.sampled_from(
    [
        {"choice": ["a", "bc", "ü"]},
        {"regex": "[ab]{2,5}"},
        {"json_object": True},
        {"json": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}},
        {"grammar": 'start: "x" | "y" start'},
    ]
)
REPETITIONS = st.sampled_from(
    [{"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 2}, {"max_pattern_size": 4, "min_count": 3}]
)
LOGPROBS = st.sampled_from([-1, 0, 1, 3, 20, NUM_IDS])
FLAGS = st.booleans()
# What a request may have besides its prompt, its seed and its length.
FIELDS = {
    "temperature": st.sampled_from([0.0, 1e-4, 0.5, 1.0, 2.0]),
    "top_p": st.sampled_from([1e-6, 0.3, 0.9, 1.0]),
    "top_k": st.sampled_from([-1, 0, 1, 5, NUM_IDS, 10**6]),
    "min_p": st.sampled_from([0.0, 0.1, 1.0]),
    "presence_penalty": st.floats(-2, 2, width=16),
    "frequency_penalty": st.floats(-2, 2, width=16),
    "repetition_penalty": st.sampled_from([0.01, 0.5, 1.5, 10.0, 1e30]),
    "stop": TEXTS,
    "stop_token_ids": IDS,
    "include_stop_str_in_output": FLAGS,
    "ignore_eos": FLAGS,
    "logit_bias": st.dictionaries((FEW_IDS | ANY_ID).map(str), st.sampled_from([-100.0, -1.5, 0.0, 5.0, 100.0]), max_size=4),
    "allowed_token_ids": IDS,
    "bad_words": TEXTS,
    "logprobs": LOGPROBS,
    "prompt_logprobs": LOGPROBS,
    "logprob_token_ids": IDS,
    "echo": FLAGS,
    "n": st.integers(1, 3),
    "structured_outputs": CONSTRAINTS,
    "thinking_token_budget": st.integers(0, 4),
    "repetition_detection": REPETITIONS,
    "truncate_prompt_tokens": st.sampled_from([-1, 1, 20]),
    "truncation_side": st.sampled_from(["left", "right"]),
    "skip_special_tokens": FLAGS,
    "spaces_between_special_tokens": FLAGS,
    "cache_salt": st.sampled_from(["one", "two"]),
    "return_tokens_as_token_ids": FLAGS,
}


@st.composite
def bodies(draw):
    """Draw a request of one to six of these fields, each of them in its range."""
    max_tokens = draw(st.integers(1, MOST_TOKENS))
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=6, unique=True))
    body = {
        "prompt": draw(PROMPTS),
        "seed": draw(st.integers(-(2**63) + 3, 2**63 - 3)),
        "max_tokens": max_tokens,
        "return_token_ids": True,
        **{name: draw(FIELDS[name]) for name in names},
    }
    if draw(st.integers(0, 4)) == 0:
        # Nothing is left of the first row if both are forbidden.
        body |= {"allowed_token_ids": [ID_OF("a"), ID_OF("b")], "bad_words": draw(st.sampled_from([["a", "b"], ["a"]]))}
    if draw(FLAGS):
        body["min_tokens"] = draw(st.integers(0, max_tokens))
    if draw(st.integers(0, 4)) == 0:
        body["best_of"] = body.get("n", 1) + draw(st.integers(0, 2))
    return body


def test_random_parameters_cost_nobody_the_worker_and_bring_the_same_in_a_batch(server):
    statuses: list[int] = []

    @settings(
        max_examples=NUM_BATCHES,
        deadline=None,
        database=None,
        derandomize=not EXAMPLES,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(batch=st.lists(bodies(), min_size=2, max_size=6))
    def compare(batch) -> None:
        together = ask_together(server, batch)
        alone = [ask(server, body) for body in batch]

        for body, in_batch, by_itself in zip(batch, together, alone, strict=True):
            assert in_batch.status_code < 500, f"{json.dumps(body)}\n{in_batch.text}"
            assert essence(in_batch) == essence(by_itself), json.dumps(body)
        statuses.extend(response.status_code for response in together)
        assert "worker.lost" not in server.output()

    compare()
    # Most of them got as far as the model.
    assert statuses.count(200) >= 0.6 * len(statuses)
    server.wait_idle(10)


INNOCENT = {"prompt": "abc", "max_tokens": 40, "seed": 5, "ignore_eos": True, "return_token_ids": True}
NOTHING_LEFT = {"prompt": "x", "max_tokens": 5, "allowed_token_ids": [ID_OF("a")], "bad_words": ["a"], "seed": 1}


@pytest.mark.parametrize(
    "asks",
    [{}, {"logprobs": 1}, {"logprobs": -1}, {"best_of": 2}, {"prompt_logprobs": 1, "n": 2}, {"echo": True, "logprobs": 0}],
)
def test_a_request_with_nothing_left_to_sample_fails_alone(server, asks):
    expected = essence(ask(server, INNOCENT))

    *innocent, failed = ask_together(server, [*[INNOCENT] * 3, NOTHING_LEFT | asks])

    assert failed.status_code == 400
    assert "Nothing is left to sample" in failed.text
    assert [essence(each) for each in innocent] == [expected] * 3
    assert "worker.lost" not in server.output()


def test_allowed_ids_that_contradict_min_tokens_are_refused(server):
    body = {"prompt": "x", "max_tokens": 5, "allowed_token_ids": [EOS], "min_tokens": 4, "logprobs": 1}

    response = ask(server, body)

    assert response.status_code == 400
    assert re.search(r"allowed_token_ids .* min_tokens=4", response.json()["error"]["message"])


def ask(server, body) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)


def ask_together(server, batch) -> list[httpx.Response]:
    with ThreadPoolExecutor(len(batch)) as pool:
        return list(pool.map(lambda body: ask(server, body), batch))


def essence(response: httpx.Response) -> object:
    """Return what a request brings whatever runs beside it: all but times, ids of requests and the last digits of values."""
    if response.status_code != 200:
        return response.status_code, response.json()["error"]["message"]
    return [
        (
            *(choice[name] for name in ("index", "text", "token_ids", "finish_reason", "stop_reason")),
            rounded(choice["logprobs"]),
            rounded(choice.get("prompt_logprobs")),
        )
        for choice in response.json()["choices"]
    ]


def rounded(value: object) -> object:
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-3)
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {key: rounded(each) for key, each in value.items()} if isinstance(value, dict) else value
