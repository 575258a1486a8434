"""Which weights have computed which tokens of an output."""

import pytest

from tetrad.frontend.api.grpc.answers import Answers
from tetrad.frontend.request.outputs import CompletionOutput, RequestOutput, merge, places_of
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.request.steps import Step
from tetrad.frontend.request.weight_versions import WeightVersionSpan, with_tokens


@pytest.mark.parametrize(
    ("steps", "spans"),
    [
        ([("v1", 0, 2), ("v1", 2, 3)], [("v1", 0, 3)]),
        ([("v1", 0, 2), ("v2", 2, 3)], [("v1", 0, 2), ("v2", 2, 3)]),
        ([("v2", 2, 3)], [("default", 0, 2), ("v2", 2, 3)]),
        ([("v1", 0, 1), ("", 1, 2)], [("v1", 0, 1), ("default", 1, 2)]),
    ],
    ids=["the same", "another", "the first with a name", "one without a name"],
)
def test_tokens_extend_the_span_of_their_weights(steps, spans):
    found = ()
    for step in steps:
        found = with_tokens(found, *step)

    assert found == tuple(WeightVersionSpan(*span) for span in spans)


def test_a_sequence_notes_the_weights_of_its_new_tokens():
    sequence = Sequence("a", 1, 0, [1, 2], SamplingParams(), seed=0, max_tokens=9)
    for version, ids in (("", [5, 6]), ("v2", [7]), ("v2", [])):
        first = len(sequence.output_token_ids)
        sequence.add_token_ids(ids)
        if version:
            sequence.note_weights(version, first)

    assert sequence.weight_versions == (WeightVersionSpan("default", 0, 2), WeightVersionSpan("v2", 2, 3))


def test_steps_of_different_weights_are_not_joined():
    first, second = Step(0, [(1, [5], None)], weight_version="v1"), Step(0, [(1, [6], None)], weight_version="v2")

    assert not first.try_join(second)
    assert first.updates == [(1, [5], None)]


def test_joined_outputs_have_the_spans_of_the_later_one_and_messages_the_last_version():
    spans = (WeightVersionSpan("v1", 0, 1), WeightVersionSpan("v2", 1, 2))
    outputs = [
        RequestOutput("a", None, [1], None, [CompletionOutput(0, "x", [place], weight_versions=spans[: place + 1])], False)
        for place in range(2)
    ]

    merge(outputs[0], outputs[1], places_of(outputs[0]), aggregate=True)
    [joined] = outputs[0].outputs

    assert joined.weight_versions == spans
    assert Answers("a").completion(outputs[0], joined).weight_version == "v2"
    assert Answers("a").completion(outputs[0], CompletionOutput(0, "x", [5])).weight_version == ""
