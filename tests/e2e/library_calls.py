"""Calls of the library that tests of models share: generation for prompts that come together, and values of metrics."""

from collections.abc import Sequence

from tetrad import LLM, RequestOutput, SamplingParams


def generate_together(llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[RequestOutput]:
    """Return what a model generates for prompts that wait together when the first step begins.

    The number of running requests, and so whether requests are preempted, does not depend on how fast prompts are sent.
    """
    admin, run = llm._running.frontend.engine_admin, llm._running.run
    run(admin.pause("keep", clear_cache=False))
    llm.enqueue([{"prompt_token_ids": list(prompt)} for prompt in prompts], params, use_tqdm=False)
    run(admin.resume())
    return llm.wait_for_completion(use_tqdm=False)


def value_of(llm: LLM, name: str) -> float:
    """Return the value of a metric that has no labels."""
    [metric] = [metric for metric in llm.get_metrics() if metric.name == name]
    return metric.value
