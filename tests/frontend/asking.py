"""Runs a request on an AsyncLLM, in one call."""

from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams

FINAL, DELTA, CUMULATIVE = RequestOutputKind.FINAL_ONLY, RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE


async def run(llm, prompt="hi", request_id="r", **params):
    rank = params.pop("data_parallel_rank", None)
    fields = {"max_tokens": 20, "output_kind": FINAL} | params
    outputs = llm.generate(prompt, SamplingParams(**fields), request_id, data_parallel_rank=rank)
    return [output async for output in outputs]


def ids_of(outputs):
    return [token_id for output in outputs for token_id in output.outputs[0].token_ids]
