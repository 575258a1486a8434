"""Merged streams: outputs that are there together come together; each stream's stay in order, and a failure ends all."""

import pytest

from tetrad.frontend.llm.output_stream import merged
from tetrad.frontend.request.collector import OutputCollector
from tetrad.frontend.request.outputs import CompletionOutput, RequestMetrics, RequestOutput
from tetrad.services.errors import Unavailable


class Stream:
    """One request's outputs, as OutputStream has them."""

    def __init__(self):
        self.collector, self.is_closed = OutputCollector(aggregate=True), False
        self.get, self.call_when_ready = self.collector.get, self.collector.call_when_ready

    def put(self, text, *, finished=False):
        output = CompletionOutput(index=0, text=text, token_ids=[7], finish_reason="length" if finished else None)
        self.collector.put(RequestOutput("r", "", [1], None, outputs=[output], finished=finished, metrics=RequestMetrics(0.0)))

    def close(self):
        self.is_closed = True


@pytest.fixture
def streams():
    return [Stream() for _ in range(100)]


def texts(outputs):
    return [(place, output.outputs[0].text) for place, output in outputs]


async def test_outputs_that_are_there_come_together_in_their_order_and_untaken_ones_are_joined(streams):
    for place in (2, 0, 1):
        streams[place].put("a")
    found = merged(streams[:3])
    first = texts(await anext(found))
    for place in (1, 0, 1):
        streams[place].put("b")

    second = texts(await anext(found))

    assert first == [(0, "a"), (1, "a"), (2, "a")]
    assert second == [(1, "bb"), (0, "b")]
    await found.aclose()


async def test_all_streams_are_followed_to_their_end(streams):
    for stream in streams:
        stream.put("a", finished=True)

    found = [texts(outputs) async for outputs in merged(streams)]

    assert [len(outputs) for outputs in found] == [64, 36]
    assert [each for outputs in found for each in outputs] == [(place, "a") for place in range(100)]
    assert all(stream.is_closed for stream in streams)


async def test_a_failure_comes_behind_the_outputs_before_it_and_closes_all_streams(streams):
    streams[0].put("a")
    found = merged(streams)
    await anext(found)
    streams[1].put("b")
    streams[0].put("b")
    streams[0].collector.fail(Unavailable("gone"))

    assert texts(await anext(found)) == [(1, "b"), (0, "b")]
    with pytest.raises(Unavailable, match="gone"):
        await anext(found)
    assert all(stream.is_closed for stream in streams)
