"""clients/typescript against a recording server: its retries, and integers that no JavaScript number holds."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.documents import ROOT
from tetrad.v1 import inference_pb2, inference_pb2_grpc

CLIENT = ROOT / "clients/typescript"
BEYOND_NUMBERS = 2**53 + 1
SCRIPT = """
import {{ TetradClient }} from {module};
const client = new TetradClient({target});
try {{
  {body}
}} catch (error) {{
  console.log(String(error));
}} finally {{
  client.close();
}}
"""


class Server(inference_pb2_grpc.ModelServiceServicer, inference_pb2_grpc.InferenceServiceServicer):
    """Is unavailable to the first two calls."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.seeds: list[int] = []

    def ListModels(self, request, context):
        self._refuse_at_first(context)
        return inference_pb2.ListModelsResponse(models=[inference_pb2.ModelCard(name="m", created_unix_s=1_700_000_000)])

    def Generate(self, request, context):
        if request.text == "bad":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a bad text")
        self._refuse_at_first(context)
        self.seeds.append(request.sampling_params.seed)
        yield inference_pb2.GenerateResponse(text="done" * request.sampling_params.max_tokens or "done")

    def Chat(self, request, context):
        self._refuse_at_first(context)
        self.seeds.append(request.sampling_params.seed)
        yield inference_pb2.ChatResponse()

    def _refuse_at_first(self, context) -> None:
        self.num_calls += 1
        if self.num_calls <= 2:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    subprocess.run(["bash", "-euc", "npm ci && npm run build"], cwd=CLIENT, check=True, capture_output=True, timeout=300)


@pytest.fixture
def server():
    servicer, server = Server(), grpc.server(ThreadPoolExecutor(2))
    inference_pb2_grpc.add_ModelServiceServicer_to_server(servicer, server)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    servicer.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(None).wait()


def said(server: Server, body: str) -> str:
    """Return what a program prints that has a client."""
    module, target = json.dumps(str(CLIENT / "dist/client.js")), json.dumps(server.target)
    script = SCRIPT.format(module=module, target=target, body=body)
    ran = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("for (const each of await client.listModels()) console.log(each.name, each.created_unix_s);", "m 1700000000\n"),
        ('console.log(await client.complete({ text: "x" }));', "done\n"),
    ],
    ids=["models", "text"],
)
def test_a_server_that_is_away_for_a_moment_is_asked_again(server, body, expected):
    assert said(server, body) == expected
    assert server.num_calls == 3


def test_an_answer_may_be_as_large_as_the_server_s_limit(server):
    body = 'console.log((await client.complete({ text: "x", sampling_params: { max_tokens: 1500000 } })).length);'

    assert said(server, body) == "6000000\n"


def test_a_stream_may_be_read_later_than_it_fails(server):
    """A call that begins before its loop would have nobody to tell its error to, which ends the process."""
    body = """
    const stream = client.generate({ text: "bad" });
    await new Promise((resolve) => setTimeout(resolve, 500));
    for await (const _ of stream) {}"""

    assert said(server, body) == "Error: 3 INVALID_ARGUMENT: a bad text\n"


@pytest.mark.parametrize("method", ["generate", "chat"])
def test_a_seed_that_no_number_holds_arrives_as_it_was_written(server, method):
    seed = f'{{ sampling_params: {{ seed: "{BEYOND_NUMBERS}" }} }}'

    said(server, f"for await (const _ of client.{method}({seed})) {{}}")

    assert server.seeds == [BEYOND_NUMBERS]


@pytest.mark.parametrize("method", ["generate", "chat"])
def test_a_seed_that_was_rounded_is_refused(server, method):
    answer = said(server, f"client.{method}({{ sampling_params: {{ seed: {BEYOND_NUMBERS} }} }});")

    text = "RangeError: sampling_params.seed must be an integer of at most 2^53 - 1, or a string, got 9007199254740992\n"
    assert answer == text
    assert server.num_calls == 0
