"""Anthropic's events: in their order, and adding up to the whole message in any chunking."""

import json

import pytest

from tests.frontend.turns import PIECES, chunked
from tetrad.frontend.api.http.messages.events import MessageEvents
from tetrad.frontend.api.http.turns.totals import TurnTotals
from tetrad.frontend.chat.turn_stream import TurnPart
from tetrad.frontend.parsing.elements.pieces import ToolCallArguments, ToolCallStart
from tetrad.frontend.request.outputs import CompletionOutput


def part(pieces):
    return TurnPart(CompletionOutput(0, "", []), pieces, None)


def totals(reason="stop", stop=None, output_tokens=5):
    return TurnTotals(20, 16, output_tokens, 2, reason, stop)


def generate(pieces, *, together=False, **ending):
    """Return the events and the whole message."""
    message = MessageEvents("msg_1", "fake", max_tokens=9)
    events = message.start(totals(None))
    for each in [pieces] if together else [[piece] for piece in pieces]:
        events += message.add(part(each))
    end = totals(**ending)
    return events + message.finish(end), message.message(end)


def added_up(events):
    """Return the message that a client makes of events, after Anthropic's documentation."""
    message, texts, open_index = None, {}, None
    for event in events:
        match event["type"]:
            case "message_start":
                message = json.loads(json.dumps(event["message"]))
            case "content_block_start":
                assert open_index is None
                open_index = event["index"]
                assert open_index == len(message["content"])
                message["content"].append(dict(event["content_block"]))
                texts[open_index] = ""
            case "content_block_delta":
                assert event["index"] == open_index
                delta, block = event["delta"], message["content"][open_index]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "signature_delta":
                        block["signature"] = delta["signature"]
                    case "input_json_delta":
                        texts[open_index] += delta["partial_json"]
            case "content_block_stop":
                assert event["index"] == open_index
                if texts[open_index]:
                    message["content"][open_index]["input"] = json.loads(texts[open_index])
                open_index = None
            case "message_delta":
                assert open_index is None
                message |= event["delta"]
                message["usage"] |= event["usage"]
    return message


def test_a_text_block_has_no_empty_citations():
    """Anthropic sends the field only where there are citations; Vercel's AI SDK refuses null."""
    events, whole = generate(PIECES["text"])

    assert [set(block) for block in whole["content"]] == [{"type", "text"}]
    assert [set(event["content_block"]) for event in events if event["type"] == "content_block_start"] == [{"type", "text"}]


@pytest.mark.parametrize("kind", PIECES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_events_add_up_to_the_whole_message(kind, size):
    reason = "tool_calls" if "call" in kind or kind == "all" else "stop"

    events, message = generate(chunked(PIECES[kind], size), reason=reason)
    _, unchunked = generate(PIECES[kind], together=True, reason=reason)

    assert added_up(events) == message == unchunked
    assert [events[0]["type"], events[1]["type"]] == ["message_start", "ping"]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]


def test_a_turn_of_every_kind():
    _, message = generate(PIECES["all"], reason="tool_calls")

    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert message["content"][2] == {"type": "tool_use", "id": "call_0", "name": "get_weather", "input": {"city": "Paris"}}
    assert message["content"][3]["input"] == {}
    assert message["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ({"reason": "stop"}, ("end_turn", None)),
        ({"reason": "stop", "stop": "END"}, ("stop_sequence", "END")),
        ({"reason": "stop", "stop": 42}, ("end_turn", None)),
        ({"reason": "length", "output_tokens": 9}, ("max_tokens", None)),
        ({"reason": "length", "output_tokens": 8}, ("model_context_window_exceeded", None)),
        ({"reason": "tool_calls", "stop": "END"}, ("tool_use", None)),
    ],
)
def test_why_it_stopped(ending, expected):
    events, message = generate(PIECES["text"], **ending)

    assert (message["stop_reason"], message["stop_sequence"]) == expected
    assert (events[-2]["delta"]["stop_reason"], events[-2]["delta"]["stop_sequence"]) == expected


def test_a_message_starts_with_no_tokens_of_any_kind():
    """Also if the first update has tokens: the usage at the end counts them."""
    events, _ = generate(PIECES["all"], reason="tool_calls")

    usage = events[0]["message"]["usage"]
    assert (usage["output_tokens"], usage["output_tokens_details"]) == (0, {"thinking_tokens": 0})


def test_usage_counts_cached_tokens_apart():
    _, message = generate(PIECES["text"])

    assert message["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 16,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 2},
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"city": "Par', {}), ('{"a": 1, "b": [1, 2', {"a": 1, "b": [1, 2]}), ("nonsense", {}), ("[1]", {}), ("", {})],
)
def test_arguments_that_were_cut_off_keep_what_is_complete(arguments, expected):

    _, message = generate([ToolCallStart(0, "f", "c"), ToolCallArguments(0, arguments)], reason="length")

    assert message["content"][0]["input"] == expected
