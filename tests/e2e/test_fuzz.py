"""Random requests, valid and not, over HTTP and gRPC: none is a server error, and the next request is answered.

`make test` sends a few, the same ones each time; `make fuzz` sends as many as TEST_FUZZ_EXAMPLES says, others each time.
"""

import contextlib
import os
import random
import warnings

import grpc
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tests.e2e.conftest import ONE_TOKENIZER
from tests.fuzz.messages import messages
from tetrad.v1 import inference_pb2, inference_pb2_grpc

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of libraries that it imports
    import schemathesis
    from schemathesis import GenerationMode

EXAMPLES = int(os.environ.get("TEST_FUZZ_EXAMPLES", "0"))
NOT_IMPLEMENTED = 501
"""Of transcriptions: the model of these tests does not transcribe."""
NUM_HTTP, NUM_GRPC = (EXAMPLES, EXAMPLES) if EXAMPLES else (40, 60)

fuzzed = settings(
    deadline=None,
    database=None,
    derandomize=not EXAMPLES,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


@pytest.fixture(scope="module")
def small_server(start_module_server):
    """A stack over the simulated device whose longest answer is short: a random request may ask for all there is.

    Nobody may operate it: one random /pause, and nothing would be answered any more.
    """
    return start_module_server(
        *("--device", "sim", *ONE_TOKENIZER, "--max-model-len", "256", "--max-n", "4", "--operator-endpoints", "off")
    )


@pytest.fixture(scope="module")
def schema(small_server):
    return schemathesis.openapi.from_dict(httpx.get(f"{small_server.url}/openapi.json").json())


MESSAGES = [{"role": "user", "content": "Hello"}]
GOOD_BODIES = {
    "/v1/completions": {"prompt": "Hello", "max_tokens": 8},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 8},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 16},
    "/v1/messages": {"model": "smollm2-135m-instruct", "messages": MESSAGES, "max_tokens": 8},
    "/v1/messages/count_tokens": {"model": "smollm2-135m-instruct", "messages": MESSAGES},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [1, 2]},
}


def test_no_http_request_is_a_server_error(small_server, schema):
    operations = [result.ok() for result in schema.get_all_operations()]
    third = -(-NUM_HTTP // len(GOOD_BODIES) // 3)
    statuses: list[int] = []
    for operation in operations:
        if operation.path in GOOD_BODIES:
            statuses += fuzz(small_server, nearly_good_cases(operation), third)
        # What takes no body has little that can be wrong.
        number = third if operation.body else min(third, 5)
        for mode in GenerationMode:
            statuses += fuzz(small_server, operation.as_strategy(generation_mode=mode), number)

    assert httpx.get(f"{small_server.url}/health").status_code == 200
    assert len(statuses) >= NUM_HTTP
    # Requests that get far, not only ones that fail at their first field.
    assert statuses.count(200) >= NUM_HTTP * 0.1
    small_server.wait_idle(10)


def nearly_good_cases(operation) -> st.SearchStrategy:
    """Return requests that are answered, but for one to three random fields of the right type."""

    def merge(case, seed: int):
        good = GOOD_BODIES[operation.path]
        given = case.body if isinstance(case.body, dict) else {}
        names = sorted(set(given) - {"model"})
        chosen = random.Random(seed).sample(names, min(len(names), 1 + seed % 3))
        case.body = good | {name: given[name] for name in chosen}
        return case

    return st.builds(merge, operation.as_strategy(), st.integers(0, 2**32))


def message_of(error: dict | str) -> str:
    """Return the text of an error: OpenAI and Anthropic have it in an object, Ollama has the text alone."""
    return error if isinstance(error, str) else error["message"]


def fuzz(server, cases: st.SearchStrategy, number: int) -> list[int]:
    """Send `number` random requests; return what they were answered with."""
    statuses: list[int] = []

    @settings(fuzzed, max_examples=max(1, number))
    @given(case=cases)
    def send(case) -> None:
        response = case.call(base_url=server.url, timeout=60)
        statuses.append(response.status_code)
        does_not_transcribe = response.status_code == NOT_IMPLEMENTED and case.path.startswith("/v1/audio/")
        assert response.status_code < 500 or does_not_transcribe, (
            f"{case.as_curl_command()}\n{response.status_code} {response.text[:2000]}"
        )
        if response.status_code >= 400:
            assert message_of(response.json()["error"]), response.text

    # An operation without parameters has nothing that can be wrong.
    with contextlib.suppress(Unsatisfiable):
        send()
    return statuses


# What is valid in itself, so that not every message fails at its first field.
GOOD = st.sampled_from([{}, {"text": "Hello"}, {"text": "Hello", "n": 2}])
GOOD_CHAT = st.sampled_from([{}, {"messages": MESSAGES}, {"messages": MESSAGES, "tools": [{"name": "f"}]}])


@pytest.mark.parametrize(
    ("method", "request_type", "good", "share"),
    [
        ("Generate", inference_pb2.GenerateRequest, GOOD, 0.5),
        ("Chat", inference_pb2.ChatRequest, GOOD_CHAT, 0.4),
        ("Embed", inference_pb2.EmbedRequest, st.just({}), 0.05),
        ("ListModels", inference_pb2.ListModelsRequest, st.just({}), 0.03),
        ("GetModel", inference_pb2.GetModelRequest, st.just({}), 0.02),
    ],
)
def test_no_grpc_request_is_an_internal_error(small_server, method, request_type, good, share):
    statuses: dict[grpc.StatusCode, int] = {}
    with grpc.insecure_channel(small_server.grpc_target) as channel:
        inference = inference_pb2_grpc.InferenceServiceStub(channel)
        models = inference_pb2_grpc.ModelServiceStub(channel)
        call = getattr(inference, method, None) or getattr(models, method)

        @settings(fuzzed, max_examples=max(5, int(NUM_GRPC * share)))
        @given(fields=messages(request_type.DESCRIPTOR), base=good)
        def send(fields: dict, base: dict) -> None:
            request = request_type(**fields)
            request.MergeFrom(request_type(**base))
            status = outcome(call, request)
            statuses[status] = statuses.get(status, 0) + 1
            assert status not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), request

        send()
        hello = inference_pb2.GenerateRequest(text="Hello")
        assert outcome(inference.Generate, hello) is grpc.StatusCode.OK

    assert sum(statuses.values()) >= 5
    small_server.wait_idle(10)


def outcome(call, request) -> grpc.StatusCode:
    """Return the status that a call ends with."""
    try:
        answer = call(request, timeout=60)
        if hasattr(answer, "__next__"):
            list(answer)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK
