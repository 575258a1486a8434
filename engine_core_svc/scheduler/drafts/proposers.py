"""Proposers: chooses how a request's drafts are found, by its prediction and the service's options."""

from collections.abc import Callable, Sequence
from functools import partial

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.core.speculative_config import SpeculativeConfig
from tetrad.engine_core_svc.scheduler.drafts.lookup import LookupDrafts, Proposer, prediction_of
from tetrad.engine_core_svc.scheduler.drafts.model_drafts import ModelDrafts
from tetrad.engine_core_svc.scheduler.drafts.ngrams import Ngrams
from tetrad.engine_core_svc.scheduler.drafts.past_outputs import Found, Pair, PastOutputs
from tetrad.engine_core_svc.scheduler.drafts.suffixes import Suffixes

_MAX_OF_PREDICTION = 16
"""Maximum number of drafts in one step of a request with a prediction, unless options set a lower limit."""


def drafts_for(config: SpeculativeConfig | None) -> LookupDrafts | ModelDrafts:
    """Return the drafts of a service with these options; None: only requests with a prediction get drafts."""
    if config is not None and config.is_on_worker:
        return ModelDrafts(config, LookupDrafts(prediction_of, config.num_speculative_tokens, config.most_tokens))
    if config is None:
        return LookupDrafts(prediction_of, _MAX_OF_PREDICTION)
    past = PastOutputs(config.suffix_decoding_max_cached_requests, config.suffix_decoding_max_tree_depth)

    def keep(request: Request) -> None:
        past.add(request.cache_salt, request.token_ids, request.num_prompt_tokens)

    return LookupDrafts(
        lambda request: prediction_of(request) or _lookup(config, partial(past.find, request.cache_salt)),
        config.num_speculative_tokens,
        config.most_tokens,
        keep if config.suffix_decoding_max_cached_requests else lambda _: None,
    )


def _lookup(config: SpeculativeConfig, find_past: Callable[[Pair], Sequence[Found]]) -> Proposer:
    if config.method == "suffix":
        return Suffixes(
            config.suffix_decoding_max_tree_depth,
            config.suffix_decoding_max_spec_factor,
            config.suffix_decoding_min_token_prob,
            find_past,
        )
    return Ngrams(*config.ngram_lengths)
