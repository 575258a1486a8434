"""Helpers: send tokens through a detokenizer stream, and wait until a fake has counted an event."""

import asyncio

from tests.frontend.fakes import TEXT
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams

LONG = TEXT * 3


def start(llm, request_id="r", **params):
    """Start a request; return the task of its whole text."""

    async def collect():
        fields = {"max_tokens": 60, "output_kind": RequestOutputKind.DELTA} | params
        outputs = [output async for output in llm.generate([104, 105], SamplingParams(**fields), request_id)]
        return "".join(output.outputs[0].text for output in outputs)

    return asyncio.create_task(collect())


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - no event marks the change
            await asyncio.sleep(0.005)
