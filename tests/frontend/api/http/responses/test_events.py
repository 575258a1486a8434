"""OpenAI's events: numbered, in their order, and adding up to the whole response in any chunking."""

import json

import pytest

from tests.frontend.turns import PIECES, chunked
from tetrad.frontend.api.http.responses.events import ResponseEvents
from tetrad.frontend.api.http.responses.objects import text_logprobs
from tetrad.frontend.api.http.responses.text_tokens import shown_tokens
from tetrad.frontend.api.http.schemas.objects import TokenLogprob, TopLogprob
from tetrad.frontend.api.http.turns.totals import TurnTotals
from tetrad.frontend.parsing.elements.pieces import Content, Reasoning, ToolCallArguments, ToolCallStart
from tetrad.services.errors import Overloaded, Unavailable

NOW = 1_700_000_000.5


def new_events(**fields):
    response = {"id": f"resp_{'0' * 32}", "status": "in_progress", "output": [], "usage": None, "error": None}
    return ResponseEvents(response | {"tools": [], "incomplete_details": None, "completed_at": None}, lambda: NOW, **fields)


def totals(reason="stop"):
    return TurnTotals(20, 16, 5, 2, reason)


def generate(pieces, *, together=False, reason="stop"):
    """Return the events and the whole response."""
    made = new_events()
    events = made.begin()
    for each in [pieces] if together else [[piece] for piece in pieces]:
        events += made.add(each)
    events += made.finish(totals(reason))
    return events, made.response()


def added_up(events):
    """Return the output that a client makes of the deltas, after OpenAI's documentation."""
    output = []
    for number, event in enumerate(json.loads(json.dumps(events))):
        assert event["sequence_number"] == number
        kind = event["type"].removeprefix("response.")
        if "output_index" in event and kind != "output_item.added":
            item = output[event["output_index"]]
            assert event.get("item_id", item["id"]) == item["id"]
        match kind:
            case "output_item.added":
                assert event["output_index"] == len(output)
                output.append(event["item"])
            case "content_part.added":
                assert event["content_index"] == len(item["content"])
                item["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                item["content"][event["content_index"]]["text"] += event["delta"]
            case "function_call_arguments.delta":
                item["arguments"] += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert item["content"][event["content_index"]]["text"] == event["text"]
            case "function_call_arguments.done":
                assert (item["name"], item["arguments"]) == (event["name"], event["arguments"])
            case "content_part.done":
                assert item["content"][event["content_index"]] == event["part"]
            case "output_item.done":
                item["status"] = event["item"]["status"]
                assert item == event["item"]
    return output


@pytest.mark.parametrize("kind", PIECES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(("reason", "status"), [("stop", "completed"), ("length", "incomplete")])
def test_events_add_up_to_the_whole_response(kind, size, reason, status):
    events, response = generate(chunked(PIECES[kind], size), reason=reason)
    _, unchunked = generate(PIECES[kind], together=True, reason=reason)

    assert added_up(events) == response["output"]
    assert response == unchunked == events[-1]["response"]
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == f"response.{status}"
    assert [item["status"] for item in response["output"]] == ["completed"] * (len(response["output"]) - 1) + (
        [status] if response["output"] else []
    )


def test_the_order_of_a_turns_events():
    events, _ = generate([Reasoning("hm"), *PIECES["call"], Content("So.")])

    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_a_complete_response_counts_its_tokens_and_says_when():
    _, response = generate(PIECES["text"])

    assert (response["status"], response["completed_at"]) == ("completed", int(NOW))
    assert response["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 25,
    }


def test_a_response_that_was_cut_off_says_why():
    _, response = generate(PIECES["text"], reason="length")

    assert (response["incomplete_details"], response["completed_at"]) == ({"reason": "max_output_tokens"}, None)


@pytest.mark.parametrize(
    ("error", "code"), [(Unavailable("gone"), "server_error"), (Overloaded("full"), "rate_limit_exceeded")]
)
def test_a_failure_ends_with_an_event_that_has_what_there_is(error, code):
    made = new_events()
    made.begin()
    made.add([Content("Half an ans")])

    [event] = made.fail(error, totals())

    assert event["type"] == "response.failed"
    assert event["response"]["error"] == {"code": code, "message": error.message}
    assert event["response"]["status"] == "failed"
    assert [(item["status"], item["content"][0]["text"]) for item in event["response"]["output"]] == [
        ("incomplete", "Half an ans")
    ]


def test_a_queued_response_begins_once():
    made = new_events()

    events = made.queue() + made.begin()

    assert [event["type"] for event in events] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]


def test_cancelling_what_is_complete_changes_nothing():
    made = new_events()
    made.begin()
    made.finish(totals())

    made.cancel(totals())

    assert made.response()["status"] == "completed"


def logprob(token):
    return TokenLogprob(token, -0.5, list(token.encode()), [])


def test_logprobs_go_with_the_text_of_their_tokens():
    made = new_events(with_logprobs=True)
    events = made.begin()
    events += made.add([Reasoning("hm")], [logprob("hm")])
    events += made.add([], [logprob("</think>"), logprob("S")])
    events += made.add([Content("So")], [logprob("o")])
    events += made.add([Content(".")], [logprob(".")])
    events += made.finish(totals())

    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [[each.token for each in event["logprobs"]] for event in deltas] == [["S", "o"], ["."]]
    part = made.response()["output"][1]["content"][0]
    assert [each.token for each in part["logprobs"]] == ["S", "o", "."]
    assert part == next(
        event["part"] for event in events if event["type"] == "response.content_part.done" and "logprobs" in event["part"]
    )


TURN = "<think>so so</think>so<call>so</call> so"
TURN_PIECES = [Reasoning("so so"), Content("so"), ToolCallStart(0, "f", "c"), ToolCallArguments(0, "so"), Content(" so")]


def test_logprobs_of_a_text_do_not_depend_on_the_chunks():
    whole, single = new_events(with_logprobs=True), new_events(with_logprobs=True)
    whole.begin(), single.begin()

    whole.add(TURN_PIECES, [logprob(char) for char in TURN])
    rest = TURN
    for piece in TURN_PIECES:
        text = getattr(piece, "text", "<call>")
        mark, rest = rest[: rest.index(text)], rest[rest.index(text) + len(text) :]
        single.add([], [logprob(char) for char in mark])
        single.add([piece], [logprob(char) for char in text])

    for made in (whole, single):
        made.finish(totals())
        texts = [item["content"][0] for item in made.response()["output"] if item["type"] == "message"]
        assert [[each.token for each in text["logprobs"]] for text in texts] == [["s", "o"], [" ", "s", "o"]]


@pytest.mark.parametrize(
    ("tokens", "text", "shown"),
    [
        (["a", "<|call|>", "b"], "ab", ["a", "b"]),
        (["", "<|call|>", "ü", "<|end|>"], "ü", ["", "ü"]),
        (["a", ""], "a\N{REPLACEMENT CHARACTER}", ["a", ""]),
        (["<|call|>"], "<|call|>", ["<|call|>"]),
        (["a", "b", "<|call|>"], "xa", ["a", "b", "<|call|>"]),
    ],
    ids=["between others", "beside parts of a character", "cut character", "shown", "held back"],
)
def test_special_tokens_that_a_text_leaves_out_are_none_of_its_tokens(tokens, text, shown):
    assert [each.token for each in shown_tokens([logprob(token) for token in tokens], text)] == shown


def test_text_that_is_held_back_does_not_go_with_the_text_before_it():
    made = new_events(with_logprobs=True)
    made.begin()

    made.add([Content("a")], [logprob(char) for char in "a<tool_ca"])
    made.add([Content("<tool_cab")], [logprob("b")])
    made.finish(totals())

    part = made.response()["output"][0]["content"][0]
    assert "".join(each.token for each in part["logprobs"]) == part["text"]


def test_a_part_of_a_character_goes_with_the_token_that_completes_it():
    made = new_events(with_logprobs=True)
    made.begin()

    made.add([Content("é!")], [logprob("</think>"), logprob(""), logprob("é"), logprob("!"), logprob("")])
    made.add([Content("ü")], [logprob("ü")])
    made.finish(totals())

    part = made.response()["output"][0]["content"][0]
    assert [each.token for each in part["logprobs"]] == ["", "é", "!", "", "ü"]


def test_rivals_that_are_part_of_a_character_have_a_list_of_bytes():
    """OpenAI's object has no null there, other than that of chat completions."""
    rivals = [TopLogprob("a", -1.0, [97]), TopLogprob("\N{REPLACEMENT CHARACTER}", -2.0, None)]

    [token] = text_logprobs([TokenLogprob("a", -1.0, [97], rivals)])

    assert [top.bytes for top in token.top_logprobs] == [[97], []]
