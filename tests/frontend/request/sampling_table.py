"""A table of the fields of SamplingParams for test_sampling_params.py."""

from tetrad.frontend.request.sampling_params import RepetitionDetection, RequestOutputKind
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams

CONSTRAINT = StructuredOutputsParams(regex="a+")
REPETITION = RepetitionDetection(4, 1, 3)
CUMULATIVE, FINAL_ONLY = RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY

TABLE = {
    "n": (
        1,
        [(1, 1), (16384, 16384)],
        [
            (0, "n must be at least 1, got 0."),
            (16385, "n must be at most 16384, got 16385."),
            (1.5, "n must be an integer, got 1.5."),
            (True, "n must be an integer, got True."),
        ],
    ),
    "presence_penalty": (
        0.0,
        [(-2.0, -2.0), (2, 2)],
        [
            (2.1, "presence_penalty must be in [-2, 2], got 2.1."),
            (float("nan"), "presence_penalty must be in [-2, 2], got nan."),
            ("a", "presence_penalty must be a number, got 'a'."),
        ],
    ),
    "frequency_penalty": (0.0, [(-2.0, -2.0), (2.0, 2.0)], [(-2.1, "frequency_penalty must be in [-2, 2], got -2.1.")]),
    "repetition_penalty": (
        1.0,
        [(1e-9, 1e-9), (50.0, 50.0)],
        [
            (0, "repetition_penalty must be greater than zero, got 0."),
            (float("inf"), "repetition_penalty must be a finite number, got inf."),
            (None, "repetition_penalty must be a number, got None."),
            (10**400, "repetition_penalty must be a number within the range of floats."),
        ],
    ),
    "temperature": (
        1.0,
        [(0, 0), (2, 2), (0.001, 0.01), (1e-6, 1e-6)],
        [
            (-0.1, "temperature must be non-negative, got -0.1."),
            (2.1, "temperature must be in [0, 2], got 2.1."),
            (float("nan"), "temperature must be in [0, 2], got nan."),
            ("hot", "temperature must be a number, got 'hot'."),
        ],
    ),
    "top_p": (
        1.0,
        [(1e-9, 1e-9), (1, 1)],
        [(0.0, "top_p must be in (0, 1], got 0.0."), (1.01, "top_p must be in (0, 1], got 1.01.")],
    ),
    "top_k": (
        0,
        [(-1, -1), (0, 0), (2**40, 2**40)],
        [
            (-2, "top_k must be 0 (disable), or at least 1, got -2."),
            (2.0, "top_k must be an integer, got 2.0."),
        ],
    ),
    "min_p": (
        0.0,
        [(0, 0), (1, 1)],
        [(1.1, "min_p must be in [0, 1], got 1.1."), (-0.1, "min_p must be in [0, 1], got -0.1.")],
    ),
    "seed": (
        None,
        [(-1, None), (2**63 - 1, 2**63 - 1), (-(2**63), -(2**63))],
        [
            (2**63, f"seed must fit 64 bits, got {2**63}."),
            (0.5, "seed must be an integer, got 0.5."),
        ],
    ),
    "stop": (
        [],
        [("a", ["a"]), (["a", "b"], ["a", "b"]), (None, [])],
        [
            (["a", ""], "stop cannot contain an empty string."),
            ([5], "stop must contain only strings, got 5."),
            (5, "stop must contain only strings, got 5."),
        ],
    ),
    "stop_token_ids": (
        None,
        [([], []), ((0, 2**32 - 1), [0, 2**32 - 1])],
        [
            (["a"], "stop_token_ids must contain only integers, got 'a'."),
            ([True], "stop_token_ids must contain only integers, got True."),
            ([-1], "token_id(s) [-1] in stop_token_ids contain out-of-vocab token ids."),
            (7, "stop_token_ids must contain only integers, got 7."),
        ],
    ),
    "ignore_eos": (False, [(True, True)], [(1, "ignore_eos must be a boolean, got 1.")]),
    "max_tokens": (
        16,
        [(1, 1), (None, None)],
        [(0, "max_tokens must be at least 1, got 0."), ("9", "max_tokens must be an integer, got '9'.")],
    ),
    "min_tokens": (
        0,
        [(16, 16)],
        [
            (-1, "min_tokens must be greater than or equal to 0, got -1."),
            (17, "min_tokens must be less than or equal to max_tokens=16, got 17."),
            (None, "min_tokens must be an integer, got None."),
        ],
    ),
    "logprobs": (None, [(0, 0), (-1, -1)], [(-2, "logprobs must be non-negative or -1, got -2.")]),
    "prompt_logprobs": (None, [(0, 0), (-1, -1)], [(-2, "prompt_logprobs must be non-negative or -1, got -2.")]),
    "prompt_logprob_token_ids": (
        None,
        [([5, -1], [5, -1]), (([1, 2], [3], []), [[1, 2], [3], []])],
        [
            ([], "prompt_logprob_token_ids must be ids, or one list of ids for each scored row, and not be empty."),
            (7, "prompt_logprob_token_ids must be ids, or one list of ids for each scored row, and not be empty."),
            ([-2], "prompt_logprob_token_ids must contain ids of the vocabulary, or -1 for none, got -2."),
            ([[1], [True]], "prompt_logprob_token_ids must contain only integers, got True."),
            ([[1], 2], "prompt_logprob_token_ids must have only ids, or only lists of ids, got 2 among lists."),
        ],
    ),
    "prompt_logprob_start": (
        None,
        [],
        [
            (-1, "prompt_logprob_start must be non-negative, got -1."),
            (1, "prompt_logprob_start needs prompt_logprob_token_ids."),
            (1.5, "prompt_logprob_start must be an integer, got 1.5."),
        ],
    ),
    "logprob_token_ids": (
        None,
        [([5] * 128, [5] * 128)],
        [
            ([0] * 129, "logprob_token_ids may hold at most 128 ids, got 129."),
            ([-1], "token_id(s) [-1] in logprob_token_ids contain out-of-vocab token ids."),
        ],
    ),
    "flat_logprobs": (False, [(True, True)], [(1, "flat_logprobs must be a boolean, got 1.")]),
    "detokenize": (True, [(False, False)], [("no", "detokenize must be a boolean, got 'no'.")]),
    "skip_special_tokens": (True, [(False, False)], [(None, "skip_special_tokens must be a boolean, got None.")]),
    "spaces_between_special_tokens": (True, [(False, False)], [(0, "spaces_between_special_tokens must be a boolean, got 0.")]),
    "include_stop_str_in_output": (False, [(True, True)], [("x", "include_stop_str_in_output must be a boolean, got 'x'.")]),
    "output_kind": (
        CUMULATIVE,
        [(2, FINAL_ONLY)],
        [(3, "output_kind must be one of CUMULATIVE (0), DELTA (1), FINAL_ONLY (2), got 3.")],
    ),
    "stream_interval": (None, [(1, 1)], [(0, "stream_interval must be at least 1, got 0.")]),
    "structured_outputs": (
        None,
        [(CONSTRAINT, CONSTRAINT)],
        [({"regex": "a"}, "structured_outputs must be StructuredOutputsParams, got {'regex': 'a'}.")],
    ),
    "logit_bias": (
        None,
        [({1: 500, "2": -500.0}, {1: 100.0, 2: -100.0}), ({}, {})],
        [
            ({-1: 1.0}, "token_id(s) [-1] in logit_bias contain out-of-vocab token ids."),
            ({"a": 1.0}, "logit_bias must map token ids to numbers, got the key 'a'."),
            ({1.5: 1.0}, "logit_bias must map token ids to numbers, got the key 1.5."),
            ({1: float("nan")}, "logit_bias of token 1 must be a number, got nan."),
            ({1: "x"}, "logit_bias must be a number, got 'x'."),
            ({1: 10**400}, "logit_bias must be a number within the range of floats."),
            ([1], "logit_bias must map token ids to numbers, got [1]."),
        ],
    ),
    "allowed_token_ids": (None, [([0], [0])], [([], "allowed_token_ids is not None and empty!")]),
    "bad_words": (
        [],
        [("a", ["a"])],
        [
            ([""], "bad_words cannot contain an empty string."),
            (["a\ud800"], "bad_words contains the lone surrogate U+D800 at character 1: it is not valid text."),
        ],
    ),
    "truncate_prompt_tokens": (
        None,
        [(-1, -1), (1, 1)],
        [(0, "truncate_prompt_tokens must be -1 or at least 1, got 0.")],
    ),
    "skip_reading_prefix_cache": (None, [(False, False)], [(1, "skip_reading_prefix_cache must be a boolean, got 1.")]),
    "thinking_token_budget": (
        None,
        [(0, 0)],
        [(-2, "thinking_token_budget must be non-negative or -1, got -2.")],
    ),
    "repetition_detection": (
        None,
        [(REPETITION, REPETITION)],
        [(True, "repetition_detection must be RepetitionDetection, got True.")],
    ),
    "extra_args": (
        None,
        [({}, {}), ({"a": [1, 0.5, {"b": "c"}]}, {"a": [1, 0.5, {"b": "c"}]})],
        [
            ({"a": 2**53 + 1}, f"extra_args must contain only integers that a float of 64 bits can hold, got {2**53 + 1}."),
            ({"a": 2**63}, f"extra_args must contain only integers that fit 64 bits, got {2**63}."),
            ({"a": {1}}, "extra_args must contain only what JSON can carry, got {1}."),
            ({1: 2}, "extra_args must have strings as keys."),
            ({"a": float("inf")}, "extra_args must contain only finite numbers, got inf."),
            ([], "extra_args must be a dict, got []."),
        ],
    ),
}
"""Field -> its default, edges as (given, kept), wrong values with the whole text."""
