"""Traces: the duration of the wrapping, and the content of the file."""

import asyncio
import json
from types import SimpleNamespace

from tetrad.services.observability.trace import Interval, Point, Recorder, tracing


class Kitchen:
    def cook(self, dish):
        return self.chop(dish)

    def chop(self, dish):
        return dish

    async def serve(self, dish):
        await asyncio.sleep(0)
        return dish

    def order(self, slip): ...

    def deliver(self, slip): ...


class Canteen(Kitchen):
    pass


def trace(path, use, *points):
    with tracing("kitchen", path, lambda: points):
        use()
    return json.loads(path.read_text())["traceEvents"]


def spans(events, name):
    return [event for event in events if event["name"] == name]


def test_without_a_path_no_call_is_wrapped_and_no_point_looked_for():
    cook = Kitchen.cook

    with tracing("kitchen", None, lambda: 1 / 0):
        assert Kitchen.cook is cook


def test_calls_are_spans_that_nest_and_the_class_is_as_before_when_it_ends(tmp_path):
    cook, chop = Kitchen.cook, Kitchen.chop

    events = trace(
        tmp_path / "t.json", lambda: Kitchen().cook("soup"), Point(Kitchen, "cook", "cook"), Point(Kitchen, "chop", "chop")
    )

    (outer,), (inner,) = spans(events, "cook"), spans(events, "chop")
    assert outer["ph"] == inner["ph"] == "X"
    assert outer["tid"] == inner["tid"]
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    assert (Kitchen.cook, Kitchen.chop) == (cook, chop)


def test_a_coroutine_is_a_span_beside_the_threads(tmp_path):
    events = trace(tmp_path / "t.json", lambda: asyncio.run(Kitchen().serve("soup")), Point(Kitchen, "serve", "serve"))

    assert [event["ph"] for event in spans(events, "serve")] == ["b", "e"]


def test_an_interval_goes_from_one_call_to_another_of_the_same_step(tmp_path):
    def two_steps():
        kitchen = Kitchen()
        for call in (kitchen.order, kitchen.deliver):
            call(SimpleNamespace(step_id=7))
            call(SimpleNamespace(step_id=8))

    events = trace(tmp_path / "t.json", two_steps, Interval((Kitchen, "order"), (Kitchen, "deliver"), "wait"))

    assert [(event["ph"], event["args"]["step"]) for event in spans(events, "wait")] == [
        ("b", 7), ("e", 7), ("b", 8), ("e", 8),
    ]  # fmt: skip


def test_an_inherited_call_is_traced_in_the_heir_alone(tmp_path):
    def both():
        Kitchen().chop("soup")
        Canteen().chop("soup")

    events = trace(tmp_path / "t.json", both, Point(Canteen, "chop", "chop"))

    assert len(spans(events, "chop")) == 1
    assert "chop" not in vars(Canteen)


def test_only_the_last_spans_are_kept_and_the_file_says_how_many_are_not(tmp_path):
    recorder = Recorder("kitchen", capacity=2)
    say = recorder.wrap(lambda: None, "say")

    for _ in range(5):
        say()
    recorder.write(tmp_path / "t.json")

    file = json.loads((tmp_path / "t.json").read_text())
    assert len(spans(file["traceEvents"], "say")) == 2
    assert file["otherData"]["dropped"] == 3


def test_a_trace_that_cannot_be_written_ends_no_service(tmp_path):
    with tracing("kitchen", tmp_path / "none" / "t.json", lambda: (Point(Kitchen, "cook", "cook"),)):
        Kitchen().cook("soup")

    assert not [*tmp_path.iterdir()]
