"""`tetrad bench`: its datasets, arrivals, goodput, ratios, plots and options."""

import asyncio
import base64
import io
import json
import math
import threading
import xml.etree.ElementTree as ElementTree
from itertools import islice, pairwise

import pytest
from PIL import Image

from tetrad.cli.load.datasets import RandomPrompts, SharedPrefixes, read_conversations
from tetrad.cli.load.generator import Level, Load, Measured, Server, arrivals, run_load
from tetrad.cli.load.options import levels_of, parse
from tetrad.cli.load.plot import Line, plot
from tetrad.cli.load.random_media import Bucket, RandomMedia
from tetrad.cli.load.report import report_of
from tetrad.cli.load.stream_client import StreamClient
from tetrad.cli.load.summary import LatencyLimits, figures_of
from tetrad.cli.load.sweep import LevelResult
from tetrad.services.errors import InvalidRequest


def fields_of(dataset, number=6, seed=0):
    return [prompt.fields for prompt in dataset.prompts(number, seed)]


def test_equal_seeds_make_equal_prompts_and_others_different_ones():
    dataset = RandomPrompts(input_len=8, output_len=4)

    assert fields_of(dataset, seed=1) == fields_of(dataset, seed=1) != fields_of(dataset, seed=2)
    assert {len(fields["prompt"]) for fields in fields_of(dataset)} == {8}


def test_prompts_share_as_many_prefixes_as_were_given():
    prompts = [
        fields["prompt"] for fields in fields_of(SharedPrefixes(num_prefixes=2, prefix_len=5, input_len=3, output_len=1))
    ]

    assert len({tuple(prompt[:5]) for prompt in prompts}) == 2
    assert len({tuple(prompt[5:]) for prompt in prompts}) == 6
    assert prompts[0][:5] == prompts[2][:5]


def test_messages_with_images_have_other_pixels_each():
    dataset = RandomMedia([Bucket(4, 6)], 5, 3, num_items=2)

    [first, second] = fields_of(dataset, number=2)

    [*images, text] = first["messages"][0]["content"]
    urls = [part["image_url"]["url"] for part in [*images, *second["messages"][0]["content"][:2]]]
    files = [base64.b64decode(url.removeprefix("data:image/png;base64,")) for url in urls]
    assert [Image.open(io.BytesIO(file)).size for file in files] == [(6, 4)] * 4
    assert len(set(files)) == 4
    assert len(text["text"].split()) == 5
    assert (first["max_tokens"], first["ignore_eos"]) == (3, True)
    assert fields_of(dataset, number=2) == [first, second]


@pytest.mark.parametrize("size", ["256", "0x5", "5x9000", "axb"])
def test_a_size_of_images_that_is_none_is_refused(size, capsys):
    with pytest.raises(SystemExit):
        parse(["--dataset-name", "random-mm", "--image-size", size])

    assert "must be a width and a height of 1 to 8192 pixels" in capsys.readouterr().err


def written(path, *entries):
    path.write_text("".join(f"{entry if isinstance(entry, str) else json.dumps(entry)}\n" for entry in entries))
    return path


def test_every_message_of_a_user_is_a_request_and_first_turns_come_first(tmp_path):
    said = [{"role": role, "content": str(place)} for place, role in enumerate(["system", "user", "assistant", "user"])]
    path = written(tmp_path / "c.jsonl", {"messages": said}, {"prompt": "p", "output_tokens": 3})

    dataset = read_conversations(path, output_len=9)

    assert [(each.path, each.fields["max_tokens"]) for each in dataset.prompts(4, 0)] == [
        ("/v1/chat/completions", 9),
        ("/v1/completions", 3),
        ("/v1/chat/completions", 9),
        ("/v1/chat/completions", 9),
    ]
    assert [len(fields.get("messages", ())) for fields in fields_of(dataset, 4)] == [2, 0, 4, 2]


def test_only_line_feeds_end_a_line(tmp_path):
    """JSON texts may hold other characters that Python's `splitlines` takes for the end of a line."""
    prompt = "a\u2028b\u2029c\x85d"
    path = tmp_path / "c.jsonl"
    path.write_bytes(json.dumps({"prompt": prompt}, ensure_ascii=False).encode() + b"\r\n")

    assert [fields["prompt"] for fields in fields_of(read_conversations(path, 1), 1)] == [prompt]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is not JSON"),
        pytest.param("[" * 100_000, "line 2 is not JSON: maximum recursion depth exceeded", id="deep"),
        ('{"text": "a"}', 'line 2 needs either "messages"'),
        ("7", 'line 2 needs either "messages"'),
        ('{"prompt": "a", "output_tokens": 0}', '"output_tokens" must be a whole number of at least 1, got 0'),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, words):
    path = written(tmp_path / "c.jsonl", {"prompt": "a"}, line)

    with pytest.raises(InvalidRequest, match=words):
        read_conversations(path, 1)


def test_arrivals_at_a_rate_follow_a_poisson_process_of_the_seed():
    times = list(islice(arrivals(Level(None, request_rate=50.0), seed=3), 4001))
    gaps = [later - earlier for earlier, later in pairwise(times)]

    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.05)
    # The gaps of a Poisson process deviate by as much as their mean.
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) == pytest.approx(mean, rel=0.1)
    assert times == list(islice(arrivals(Level(None, request_rate=50.0), seed=3), 4001))


def test_requests_without_a_rate_arrive_at_once():
    assert list(islice(arrivals(Level(4), seed=0), 3)) == [0.0, 0.0, 0.0]


async def test_a_request_that_is_not_answered_in_time_says_so():
    async def never_answer(reader, writer):
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        measured = await run_load(Load(Server(url, "m"), RandomPrompts(1, 1), Level(1), num_requests=1, timeout_s=0.05))
        [client] = measured.clients

    assert client.error == "not answered within 0.05 s"


async def test_a_signal_does_not_wait_until_all_requests_are_made():
    class Endless:
        def prompts(self, number, seed):
            while not stopped.wait(0.01):
                pass
            yield from ()

    stopped = threading.Event()
    running = asyncio.create_task(run_load(Load(Server("http://a", "m"), Endless(), Level(1), num_requests=1, timeout_s=1.0)))
    await asyncio.sleep(0.05)

    running.cancel()
    await asyncio.wait({running}, timeout=5)
    stopped.set()

    assert running.cancelled()


async def test_requests_beyond_the_limit_have_no_tasks():
    """A signal would end thousands of tasks, which takes minutes."""
    connected = asyncio.Event()

    async def never_answer(reader, writer):
        connected.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        load = Load(Server(url, "m"), RandomPrompts(1, 1), Level(2), num_requests=1000, timeout_s=60.0)
        running = asyncio.create_task(run_load(load))
        await asyncio.wait_for(connected.wait(), 10)
        num_tasks = len(asyncio.all_tasks())

        running.cancel()
        await asyncio.wait({running}, timeout=5)

    assert num_tasks < 20
    assert running.cancelled()


async def test_the_path_of_a_url_is_in_front_of_every_requests():
    """A proxy may serve a server below a path."""
    heads = []

    async def note_head(reader, writer):
        heads.append(await reader.readline())
        writer.close()

    async with await asyncio.start_server(note_head, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/models/a"
        await run_load(Load(Server(url, "m"), RandomPrompts(1, 1), Level(1), num_requests=1, timeout_s=60.0))

    assert heads == [b"POST /models/a/v1/completions HTTP/1.1\r\n"]


async def client_of(*arrived_at, num_tokens=3, error=""):
    client = StreamClient(b"")
    client.arrived_at, client.num_tokens, client.error = list(arrived_at), num_tokens, error
    client.ended_at = max(arrived_at, default=0.0)
    return client


async def test_goodput_counts_what_keeps_both_limits():
    clients = [
        await client_of(0.1, 0.3),
        await client_of(0.3, 0.5),  # late first token
        await client_of(0.1, 0.9),  # slow tokens
        await client_of(0.1, 0.3, error="cut off"),
    ]

    figures = figures_of(Measured(duration_s=2.0, clients=clients), LatencyLimits(ttft_ms=200, tpot_ms=150))

    assert figures["request_goodput"] == 0.5
    assert figures["goodput_share"] == 0.25
    assert "request_goodput" not in figures_of(Measured(duration_s=2.0, clients=clients), LatencyLimits())


async def two_servers():
    servers = [Server("http://a", "m<"), Server("http://b", "m<")]
    result = LevelResult(Level(2), servers, LatencyLimits())
    for ttfts in ((0.1, 0.3), (0.2, 0.3)):
        result.rounds.append([Measured(duration_s=1.0, clients=[await client_of(ttft, ttft + 0.2)]) for ttft in ttfts])
    return result


async def test_ratios_are_those_of_all_rounds_with_the_lowest_and_highest_round():
    result = await two_servers()

    ratio, lowest, highest = result.ratios()["mean_ttft_ms"]

    assert (ratio, lowest, highest) == pytest.approx((0.2 / 0.25, 0.5, 1.0))


async def test_a_report_escapes_names_and_loads_nothing():
    page = report_of([await two_servers()])

    assert "m&lt;" in page
    assert "m<" not in page
    assert not any(word in page for word in ("<script", "<link", "@import", "url("))


def test_a_plot_is_well_formed_and_leaves_out_what_is_no_number():
    figure = ElementTree.fromstring(plot("a & b", "x", "y", [Line("l", [(0, 1.0), (1, math.nan), (2, 4.0)])]))

    (line,) = figure.iter("polyline")
    assert len(line.attrib["points"].split()) == 2


def test_each_rate_is_measured_with_each_concurrency():
    levels = levels_of(parse(["--request-rate", "1,inf", "--concurrency", "2,4"]))

    assert [(level.request_rate, level.concurrency) for level in levels] == [(1, 2), (1, 4), (None, 2), (None, 4)]
    assert levels_of(parse([])) == [Level(16)]
    assert levels_of(parse(["--rate", "3"])) == [Level(None, 3)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--burstiness", "0"], "--burstiness must be more than 0"),
        (["--rounds", "0"], "--rounds must be more than 0"),
        (["--rounds", f"-1{'0' * 400}"], "--rounds must be more than 0 and finite, got -10000"),
        (["--url", "unix:/run/tetrad/http.sock"], "'unix:/run/tetrad/http.sock' is not the URL of a server"),
        (["--against", "localhost"], "'localhost' is not the URL of a server"),
        (["--ttft-ms", "nan"], "--ttft-ms must be more than 0 and finite, got nan"),
        (["--dataset-name", "custom"], "--dataset-name custom and --dataset-path need each other"),
        (["--ignore-eos"], "--ignore-eos needs --dataset-name custom"),
        (["--prefix-len", "3"], "--prefix-len needs --dataset-name prefix_repetition"),
        (["--dataset-name", "prefix_repetition", "--num-images", "2"], "--num-images needs --dataset-name random-mm"),
        (["--trace", "t", "--concurrency", "1,2"], "--trace takes one level"),
    ],
)
def test_options_that_exclude_each_other_are_refused(arguments, words):
    with pytest.raises(InvalidRequest, match=words):
        parse(arguments)


@pytest.mark.parametrize("option", ["--json", "--html", "--trace"])
@pytest.mark.parametrize(("file", "words"), [("none/r", "there is no directory"), ("", "is a directory")])
def test_a_result_that_cannot_be_written_is_refused_before_the_load(tmp_path, option, file, words):
    with pytest.raises(InvalidRequest, match=f"{option} .*{words}"):
        parse([option, str(tmp_path / file)])


def test_a_list_with_a_wrong_number_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse(["--concurrency", "1,x"])

    assert "'x' must be a whole number of at least 1" in capsys.readouterr().err


def test_two_results_in_one_file_are_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="--json and --html both name"):
        parse(["--json", str(tmp_path / "r"), "--html", str(tmp_path / "." / "r")])


def test_a_byte_order_mark_at_the_start_of_a_dataset_is_skipped(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Hi"}\n', "utf-8-sig")

    assert [fields["prompt"] for fields in fields_of(read_conversations(path, output_len=9), 1)] == ["Hi"]
