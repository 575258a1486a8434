"""`tetrad bench`: its summary of arriving pieces, and of the services' traces."""

import json

import pytest

from tetrad.cli.load.draft_counts import read_draft_counts
from tetrad.cli.load.generator import Measured
from tetrad.cli.load.step_trace import StepTrace
from tetrad.cli.load.stream_client import StreamClient
from tetrad.cli.load.summary import figures_of, percentile_of, table_of

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def token(text=b"a"):
    return b'data: {"choices":[{"text":"%b"}]}\n\n' % text


USAGE = b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


def client_of(*pieces):
    client = StreamClient(b"")
    for piece in pieces:
        client.data_received(piece)
    client.connection_lost(None)
    return client


async def test_events_of_a_chat_without_tokens_are_not_timed():
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    text = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'

    assert len(client_of(HEAD, role, text, end, USAGE, DONE).arrived_at) == 1


async def test_pieces_with_tokens_are_timed_and_the_servers_count_is_taken():
    client = client_of(HEAD, token(), token() + token(), USAGE, DONE)

    assert not client.error
    assert len(client.arrived_at) == 2
    assert client.num_tokens == 3


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([HEAD, token()], "cut off"),
        ([HEAD, token(), b'data: {"error": {"message": "lost"}}\n\n', DONE], "lost"),
        ([b"HTTP/1.1 429 Too Many Requests\r\n\r\nbusy"], "429"),
        ([b'HTTP/1.1 400 Bad Request\r\nx: y\r\n\r\n{"error":{"message":"a \\"b\\" c","code":1}}'], 'HTTP status 400: a "b" c'),
        ([], "no answer"),
    ],
)
async def test_what_went_wrong_is_said(pieces, words):
    assert words in client_of(*pieces).error


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\nserver: x\r\n\r\n<html>\nno upstream", "HTTP status 502: no upstream"),
        (b"HTTP/1.1 400 Bad Request\r\nserver: x\r\n\r\n", "HTTP status 400: no reason"),
    ],
)
async def test_an_answer_of_another_program_is_said_without_its_headers(answer, error):
    assert client_of(answer).error == error


@pytest.mark.parametrize(("percentile", "value"), [(0, 1.0), (50, 2.0), (75, 3.0), (100, 4.0)])
def test_percentiles_are_interpolated(percentile, value):
    assert percentile_of([1.0, 2.0, 4.0], percentile) == value


def file_of(path, process, pid, spans, dropped=0):
    """Write a trace as a service does: spans are (name, start, duration) of one thread, in microseconds."""
    events = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}}]
    events += [
        {"ph": "X", "name": name, "ts": start, "dur": duration, "pid": pid, "tid": pid, "args": {}}
        for name, start, duration in spans
    ]
    path.write_text(json.dumps({"otherData": {"dropped": dropped}, "traceEvents": events}))
    return path


def test_a_parts_own_time_is_without_the_parts_inside(tmp_path):
    spans = [("schedule", 110, 30), ("update", 150, 20), ("step", 100, 100)]
    path = file_of(tmp_path / "a.json", "engine-core", 1, spans)

    parts = {part.name: part for part in StepTrace([path], 0.0, 1.0).parts()}

    assert parts["step"].own == 50
    assert parts["schedule"].own == 30
    assert parts["step"].times == [100]


def test_steps_are_counted_from_where_every_process_kept_all(tmp_path):
    worker = file_of(tmp_path / "w.json", "worker", 1, [("execute", start, 5) for start in range(0, 100, 10)])
    frontend = file_of(tmp_path / "f.json", "frontend", 2, [("write", start, 5) for start in range(50, 100, 10)], dropped=5)

    assert StepTrace([worker], 0.0, 1.0).num_steps == 10
    assert StepTrace([worker, frontend], 0.0, 1.0).num_steps == 5
    assert StepTrace([worker], 40e-6, 60e-6).num_steps == 3


def draft_metrics(num_drafts, num_draft_tokens, *accepted):
    """As a frontend of any prefix exports them."""
    lines = [
        "# TYPE vllm:spec_decode_num_drafts counter",
        f'vllm:spec_decode_num_drafts_total{{model_name="m"}} {num_drafts}',
        "# TYPE vllm:spec_decode_num_draft_tokens counter",
        f'vllm:spec_decode_num_draft_tokens_total{{model_name="m"}} {num_draft_tokens}',
        "# TYPE vllm:spec_decode_num_accepted_tokens counter",
        f'vllm:spec_decode_num_accepted_tokens_total{{model_name="m"}} {sum(accepted)}',
        "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter",
    ]
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{name}{{model_name="m",position="{place}"}} {number}' for place, number in enumerate(accepted)]
    return "\n".join([*lines, ""])


def test_drafts_of_the_load_alone_are_in_the_summary():
    before, after = (read_draft_counts(draft_metrics(*counts)) for counts in ((10, 30, 5), (30, 90, 20, 10)))
    measured = Measured(duration_s=1.0, drafts=after.since(before))

    figures = figures_of(measured)

    assert figures["spec_decode_num_drafts"] == 20
    assert figures["spec_decode_acceptance_rate"] == pytest.approx(100 * 25 / 60)
    assert figures["spec_decode_acceptance_length"] == 1 + 25 / 20
    assert [figures[f"spec_decode_acceptance_at_{place}"] for place in (0, 1)] == [75, 50]
    assert "Accepted at position 1 (%)" in table_of(figures)


def test_a_server_without_drafts_has_no_lines_about_them():
    measured = Measured(duration_s=1.0, drafts=read_draft_counts(draft_metrics(0, 0)))

    figures = figures_of(measured)

    assert "Draft tokens" not in table_of(figures)
    assert not any(name.startswith("spec_decode") for name in figures)
