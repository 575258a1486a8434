"""The slot between the output processor and a caller that may be slower."""

import pytest

from tetrad.frontend.request.collector import OutputCollector
from tetrad.frontend.request.outputs import CompletionOutput, RequestOutput


def delta(*parts, finished=False):
    """An output of a request: (index, text) of each of its sequences that went on."""
    outputs = [CompletionOutput(index, text, [len(text)]) for index, text in parts]
    return RequestOutput("r", None, [1], None, outputs, finished)


def texts(output):
    return [(each.index, each.text, each.token_ids) for each in output.outputs]


def test_deltas_of_each_sequence_are_joined_until_they_are_fetched():
    collector = OutputCollector(aggregate=True)
    for output in (delta((2, "a")), delta((0, "bb")), delta((2, "ccc"), (1, "d")), delta((1, "e"), finished=True)):
        collector.put(output)

    fetched = collector.get_nowait()

    assert texts(fetched) == [(2, "accc", [1, 3]), (0, "bb", [2]), (1, "de", [1, 1])]
    assert fetched.finished
    assert collector.get_nowait() is None


def test_whole_outputs_replace_earlier_ones():
    collector = OutputCollector(aggregate=False)
    for output in (delta((1, "a"), (0, "b")), delta((1, "aa")), delta((2, "c"))):
        collector.put(output)

    assert texts(collector.get_nowait()) == [(1, "aa", [2]), (0, "b", [1]), (2, "c", [1])]


def test_places_of_what_was_fetched_are_forgotten():
    collector = OutputCollector(aggregate=True)
    for output in (delta((0, "a")), delta((1, "b"))):
        collector.put(output)
    collector.get_nowait()
    for output in (delta((1, "c")), delta((0, "d")), delta((1, "e"))):
        collector.put(output)

    assert texts(collector.get_nowait()) == [(1, "ce", [1, 1]), (0, "d", [1])]


@pytest.mark.parametrize("num_sequences", [10, 1000])
def test_the_outputs_of_one_step_take_time_in_proportion_to_their_number(num_sequences):
    class Index(int):
        num_hashed = 0

        def __hash__(self):
            Index.num_hashed += 1
            return int(self)

    collector = OutputCollector(aggregate=True)
    for _ in range(2):
        for index in range(num_sequences):
            collector.put(delta((Index(index), "a")))

    assert Index.num_hashed <= 5 * num_sequences
