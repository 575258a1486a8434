"""Batch files: valid lines, and the content of outputs. The whole command is in tests/e2e."""

import json
import os
from pathlib import Path

import pytest

from tests.tetrad.cli.batch_lines import REQUEST, line, request
from tetrad.cli.batch_file.lines import BadLine, BatchRequest, keys_of, read_lines
from tetrad.cli.batch_file.results import ResultFile, error_record, response_record
from tetrad.cli.run_batch import Tally, run
from tetrad.services.errors import FailedPrecondition, InvalidRequest, NotFound, Unavailable


def written(tmp_path: Path, *lines: str | bytes) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(each if isinstance(each, bytes) else each.encode() for each in lines))
    return path


def test_a_line_is_a_request_and_an_empty_one_is_nothing(tmp_path):
    path = written(tmp_path, b"\xef\xbb\xbf" + line().encode(), "", "  \r", line(custom_id="ü"))

    assert list(read_lines(path)) == [REQUEST, BatchRequest(4, "ü", "/v1/completions", {"prompt": "x"})]
    assert keys_of(path) == {"a": 1, "ü": 4}


@pytest.mark.parametrize(
    ("text", "custom_id", "code", "words"),
    [
        ("{", None, "invalid_json", "Line 1: not valid JSON"),
        (b"\xff\xfe", None, "invalid_json", "Line 1: not UTF-8 at byte 0"),
        ("[1]", None, "invalid_json", "got list"),
        ('{"custom_id": "a", "body": NaN}', None, "invalid_json", "NaN is not JSON"),
        ("[" * 100_000, None, "invalid_json", "nested too deeply"),
        ("{}", None, "invalid_custom_id", "got None"),
        (line(custom_id=7), None, "invalid_custom_id", "got 7"),
        (line(custom_id=""), None, "invalid_custom_id", "not empty"),
        (line(method="GET"), "a", "invalid_method", "got 'GET'"),
        (line(url="/v1/images"), "a", "invalid_url", "/v1/chat/completions, /v1/completions, /v1/embeddings, "),
        (line(url=["/v1/completions"]), "a", "invalid_url", "got ['/v1/completions']"),
        (line(body="x"), "a", "invalid_body", "got str"),
        (line(body={"stream": True}), "a", "invalid_body", "stream=true"),
    ],
)
def test_a_line_that_cannot_be_sent_says_why_and_where(tmp_path, text, custom_id, code, words):
    [found] = read_lines(written(tmp_path, text))

    assert isinstance(found, BadLine)
    assert (found.custom_id, found.code) == (custom_id, code)
    assert words in found.message
    assert found.message.startswith("Line 1: ")


def test_an_id_that_is_there_twice_is_refused_with_both_lines(tmp_path):
    path = written(tmp_path, line(), line(custom_id="b"), line(method="GET"))

    with pytest.raises(InvalidRequest, match="custom_id 'a' is on line 1 and again on line 3"):
        keys_of(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NotFound, match=r"none\.jsonl: No such file"):
        keys_of(tmp_path / "none.jsonl")


@pytest.mark.parametrize("is_output", [False, True])
def test_a_name_that_no_file_can_have_is_named(tmp_path, is_output):
    source, long = str(written(tmp_path, line())), "x" * 300
    files = ["-i", source, "-o", long] if is_output else ["-i", long, "-o", str(tmp_path / "out.jsonl")]

    with pytest.raises(Unavailable if is_output else NotFound, match="File name too long"):
        run([*files, "--url", "http://127.0.0.1:1"])


def test_a_pipe_which_can_be_read_only_once_is_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with pytest.raises(InvalidRequest, match=r"pipe is not a regular file.*read twice"):
        keys_of(pipe)


def test_wherever_a_write_was_cut_the_file_is_whole_again(tmp_path):
    whole = tmp_path / "whole.jsonl"
    with ResultFile(whole) as results:
        results.append(response_record(REQUEST, status_code=200, request_id="r", body={"text": "ü\n"}))
        results.append(error_record(BadLine(2, None, "invalid_json", "Line 2: no"), "invalid_json", "Line 2: no"))
    content = whole.read_bytes()
    first = content.index(b"\n") + 1

    for cut in range(len(content) + 1):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(content[:cut])
        with ResultFile(path) as results:
            assert results.done == ({"a", 2} if cut == len(content) else {"a"} if cut >= first else set())
            results.append(error_record(BatchRequest(3, "c", "", {}), "x", "y"))
        lines = path.read_bytes().splitlines(keepends=True)
        assert b"".join(lines[:-1]) == content[: len(content) if cut == len(content) else first if cut >= first else 0]
        assert json.loads(lines[-1])["custom_id"] == "c"


def test_failures_that_may_pass_are_dropped_and_others_stay(tmp_path):
    path, link = tmp_path / "out.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    passing = [
        *(
            response_record(request(f"s{status}"), status_code=status, request_id="r", body={})
            for status in (429, 502, 503, 504)
        ),
        *(error_record(request(code), code, "gone") for code in ("connection_lost", "request_timeout")),
    ]
    staying = [
        response_record(request("good"), status_code=200, request_id="r", body={}),
        response_record(request("wrong"), status_code=400, request_id="r", body={}),
        error_record(BadLine(7, None, "invalid_json", "no"), "invalid_json", "no"),
    ]
    with ResultFile(path) as results:
        for record in (*passing, *staying):
            results.append(record)
    path.chmod(0o640)

    with ResultFile(link) as results:
        assert (results.done, results.failed) == ({"good", "wrong", 7}, {"wrong", 7})
        with pytest.raises(FailedPrecondition, match="Another run writes"):
            ResultFile(path)
        results.append(response_record(request("s429"), status_code=200, request_id="r", body={}))

    assert [json.loads(each)["custom_id"] for each in path.read_text().splitlines()] == ["good", "wrong", None, "s429"]
    assert (link.is_symlink(), path.stat().st_mode & 0o777) == (True, 0o640)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.jsonl", "out.jsonl"]


def test_a_failure_of_a_line_that_is_no_longer_in_the_batch_is_none_of_the_run(tmp_path, capsys):
    """The user has corrected the line under another id, or taken it out."""
    source, target = written(tmp_path, line()), tmp_path / "out.jsonl"
    with ResultFile(target) as results:
        results.append(response_record(request("a"), status_code=200, request_id="r", body={}))
        results.append(response_record(request("gone"), status_code=400, request_id="r", body={}))

    assert run(["-i", str(source), "-o", str(target)]) == 0
    assert "failed" not in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"precious", b"precious\n", b'{"id": "x", "custom_id": "a"}\n', b"[]\n", b"\xff\n"])
def test_a_file_that_is_no_output_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)

    with pytest.raises(InvalidRequest, match="line 1 is no result"):
        ResultFile(path)

    assert path.read_bytes() == content


@pytest.mark.parametrize("usage", [[1], "x", {"completion_tokens": "7"}, {"completion_tokens": [7]}])
def test_an_answer_whose_usage_is_of_another_form_is_counted_without_tokens(tmp_path, usage):
    record = response_record(REQUEST, status_code=200, request_id="", body={"usage": usage})
    with ResultFile(tmp_path / "out.jsonl") as results:
        tally = Tally(total=1, done=0, results=results)
        tally.add(record)

    assert tally.summary().startswith("1 of 1 requests succeeded, 0 failed")


@pytest.mark.parametrize("path", ["/dev/zero", "pipe"])
def test_an_output_that_is_no_file_is_refused(tmp_path, monkeypatch, path):
    """Results are read before a run: /dev/zero has no end."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")

    with pytest.raises(InvalidRequest, match=f"{path} is a device, a pipe or a socket"):
        ResultFile(Path(path))
    with ResultFile(Path(os.devnull)) as results:
        assert results.done == set()


def test_two_runs_cannot_write_one_output(tmp_path):
    with ResultFile(tmp_path / "out.jsonl"), pytest.raises(FailedPrecondition, match="Another run writes"):
        ResultFile(tmp_path / "out.jsonl")

    ResultFile(tmp_path / "out.jsonl").__exit__(None, None, None)


def test_an_output_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(Unavailable, match=r"Cannot write .*: No such file"):
        ResultFile(tmp_path / "nowhere" / "out.jsonl")
