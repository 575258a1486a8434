"""SpeculativeConfig reads vLLM's options of speculative decoding; errors name a wrong or unsupported option."""

import json

import pytest

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.services.errors import InvalidRequest

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
DRAFTED = {"method": "draft_model", "num_speculative_tokens": 4, "model": "small"}


@pytest.mark.parametrize(
    ("options", "lengths"),
    [({}, (5, 5)), ({"prompt_lookup_min": 2}, (2, 2)), ({"prompt_lookup_max": 3}, (3, 3)),
     ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, (2, 4))],
)  # fmt: skip
def test_lengths_of_n_grams_default_as_in_vllm(options, lengths):
    assert read_speculative_config(NGRAM | options).ngram_lengths == lengths


def test_nothing_given_is_no_speculation():
    assert read_speculative_config("") is None
    assert read_speculative_config({}) is None


def test_drafts_of_suffixes_are_as_many_as_their_depth_unless_told():
    assert read_speculative_config({"method": "suffix"}).num_speculative_tokens == 24
    assert read_speculative_config({"method": "suffix", "suffix_decoding_max_tree_depth": 9}).num_speculative_tokens == 9


def test_drafts_follow_the_number_of_requests():
    config = read_speculative_config(NGRAM | {"num_speculative_tokens_per_batch_size": [[1, 4, 9], [8, 16, 2], [17, 32, 0]]})
    switched = read_speculative_config(NGRAM | {"disable_by_batch_size": 5})

    assert [config.most_tokens(size) for size in (1, 4, 6, 8, 16, 17, 100)] == [4, 4, 4, 2, 2, 0, 0]
    assert [switched.most_tokens(size) for size in (4, 5)] == [4, 0]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"method": "ngram"}, "num_speculative_tokens"),
        (NGRAM | {"num_speculative_tokens": 0}, "num_speculative_tokens.*greater than or equal to 1.*got 0"),
        (NGRAM | {"num_speculative_tokens": 99}, "num_speculative_tokens.*less than or equal to 32.*got 99"),
        (NGRAM | {"prompt_lookup_min": 5, "prompt_lookup_max": 2}, "prompt_lookup_min 5 is larger than prompt_lookup_max 2"),
        ({"num_speculative_tokens": 4}, "no method is given"),
        (NGRAM | {"method": "eagle"}, "'eagle' is given; use one of ngram, suffix, draft_model, eagle3, mtp"),
        (NGRAM | {"method": "eagle3"}, "method 'eagle3' needs a model"),
        (DRAFTED | {"method": "mtp"}, "method 'mtp' has its layer in the target's files and takes no model"),
        (NGRAM | {"model": "small"}, "'ngram' finds drafts in texts and takes no model"),
        ({"method": "draft_model", "num_speculative_tokens": 4}, "method 'draft_model' needs a model"),
        (DRAFTED | {"prompt_lookup_min": 2}, "method 'draft_model' has no use for prompt_lookup_min"),
        (DRAFTED | {"quantization": "int8"}, "quantization is not supported; a draft model runs as it is stored"),
        (NGRAM | {"suffix_decoding_max_cached_requests": 10}, "'ngram' has no use for suffix_decoding_max_cached"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 0}, "max_tree_depth.*greater than or equal to 2.*got 0"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": "deep"}, "max_tree_depth.*valid integer.*got 'deep'"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": [9]}, r"max_tree_depth.*valid integer.*got \[9\]"),
        (NGRAM | {"prompt_lookup": 2}, "has no 'prompt_lookup'"),
        (NGRAM | {"num_speculative_tokens_per_batch_size": [[2, 4, 1]]}, "the first begins at 1"),
        ([1], "must be a JSON object, got list"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(options, problem):
    with pytest.raises(InvalidRequest, match=problem):
        read_speculative_config(json.dumps(options))


def test_the_engine_core_refuses_a_wrong_option_at_its_start():
    with pytest.raises(ValueError, match="'medusa' is given"):
        EngineCoreSettings(speculative_config='{"method": "medusa", "num_speculative_tokens": 3}')
