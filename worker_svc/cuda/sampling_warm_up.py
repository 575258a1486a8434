"""Warm-up of sampling: steps that together launch every kernel of the sampler, since a kernel is compiled on its
first launch.
"""

from dataclasses import replace

import numpy as np

from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import GrammarRows, SamplingSpec, SchedulerOutput
from tetrad.worker_svc.runner.warm_up import dummy_plan

SAMPLINGS = (
    SamplingSpec(top_k=2, top_p=0.9, min_p=0.01, num_logprobs=1, num_prompt_logprobs=1),
    SamplingSpec(num_logprobs=-1),
    # The id that the budget forces remains, although other processors mask all ids.
    SamplingSpec(
        temperature=0.0,
        allowed_token_ids=(0, 1),
        bad_words=((1, 1),),
        logit_bias={0: 1.0},
        min_tokens=1,
        stop_token_ids=(1,),
        repetition_penalty=1.1,
        thinking_token_budget=0,
        thinking_end_ids=(0,),
        logprob_token_ids=(0,),
    ),
)


def sampling_plans(layout: KvLayout) -> list[SchedulerOutput]:
    """Return the plans of steps with one short prompt each; the caller runs each and then removes all requests."""
    num_tokens = min(2, layout.max_model_len, layout.max_num_batched_tokens)
    plans = [dummy_plan(1, num_tokens, layout, sampling) for sampling in SAMPLINGS]
    anything = GrammarRows(np.array([0]), np.full((1, 1), 0xFFFFFFFF, np.uint32))
    return [*plans[:-1], replace(plans[-1], grammar=anything)]
