"""Traces of real processes: every service's spans under the caller's traceparent, phases that add up, ends with reasons."""

import itertools
import json
import re
import secrets
import shlex
import subprocess
import textwrap
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import pytest

from tests.documents import Page
from tests.e2e.conftest import Server
from tests.otlp_receiver import ERROR, OtlpReceiver, Span, has
from tetrad import SamplingParams
from tetrad.library.async_llm import AsyncLLM
from tetrad.library.llm_services import RemoteServices
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2

STEP_S = 0.02
NUM_TOKENS = 100
"""Enough for the ways between services to be small beside it, on a crowded machine, too."""
CALLER_SPAN = "1" * 16
PHASES = ("receive", "tokenize", "queue", "prefill", "decode", "detokenize", "respond")
CHAT = ("llm_request", "render_chat", "generate", "worker.prefill", "worker.decode", *PHASES)
SERVICES = {"tetrad-frontend", "tetrad-tokenizer", "tetrad-engine-core", "tetrad-worker"}
PAGE = Page.of("docs/tracing.md")
SERVE = re.compile(r"^tetrad serve (.*)$", re.MULTILINE)
ROW = re.compile(r"^\| `([a-z_.]+)` \| (\w[\w ]*) \| (.*?) \| .*? \| (.*)\|$", re.MULTILINE)
COLLECTOR = "http://127.0.0.1:4317"
LOGGING = ("frontend", "tokenizer", "engine-core", "worker")
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def server(tmp_path_factory, receiver):
    """The stack as docs/tracing.md starts it, with steps of a real device's length."""
    flags = [flag for line in SERVE.findall(PAGE.text) for flag in shlex.split(line.partition("2>")[0])]
    assert COLLECTOR in flags
    flags[flags.index(COLLECTOR)] = receiver.endpoint
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", str(STEP_S))
        patch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")  # each span at once, where many are sent once a second
        server = Server(tmp_path_factory.mktemp("traced") / "log", "--device", "sim", *flags)
    try:
        yield server.wait_ready()
    finally:
        server.stop()


def new_trace(flags: str = "01") -> tuple[str, dict[str, str]]:
    """Return a trace's id and the headers of a call in it."""
    trace_id = secrets.token_hex(16)
    return trace_id, {"traceparent": f"00-{trace_id}-{CALLER_SPAN}-{flags}"}


def chat(server: Server, headers: dict[str, str], **fields) -> httpx.Response:
    body = {"messages": MESSAGES, "max_tokens": 8, "ignore_eos": True, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def chat_over_http(server, headers):
    assert chat(server, headers, max_tokens=NUM_TOKENS).status_code == 200


def chat_over_http_streaming(server, headers):
    assert chat(server, headers, max_tokens=NUM_TOKENS, stream=True).text.endswith("data: [DONE]\n\n")


def chat_over_grpc(server, headers):
    messages = [inference_pb2.ChatMessage(role=each["role"], content=each["content"]) for each in MESSAGES]
    sampling = types_pb2.SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    request = inference_pb2.ChatRequest(messages=messages, sampling_params=sampling)
    with grpc.insecure_channel(server.grpc_target) as channel:
        list(inference_pb2_grpc.InferenceServiceStub(channel).Chat(request, metadata=list(headers.items()), timeout=60))


def one(spans: list[Span], name: str) -> Span:
    [found] = [span for span in spans if span.name == name]
    return found


CALLS = (chat_over_http, chat_over_http_streaming, chat_over_grpc)


@pytest.fixture(scope="module")
def traces(server):
    """Make all calls at the same time, since each takes 2 s; return their traces' ids. Each call's own id is its name."""
    chat(server, {}, max_tokens=1)  # first uses of anything take their time
    made = [(call, *new_trace()) for call in CALLS]
    with ThreadPoolExecutor(len(CALLS)) as threads:
        running = [threads.submit(call, server, headers | {"x-request-id": call.__name__}) for call, _, headers in made]
        for each in running:
            each.result()
    return {call: trace_id for call, trace_id, _ in made}


@pytest.mark.parametrize("call", CALLS)
def test_a_trace_has_spans_of_all_services_whose_phases_add_up(traces, receiver, call):
    """Within 5% of the whole, one after the other; what is between them is the way from one service to the next."""
    spans = receiver.wait(traces[call], has(*CHAT))

    whole, phases = one(spans, "llm_request"), [one(spans, name) for name in PHASES]
    assert {span.service for span in spans} == SERVICES
    assert whole.parent_id == CALLER_SPAN
    assert {span.parent_id for span in spans} <= {CALLER_SPAN, *(span.span_id for span in spans)}
    assert len(spans) == len(CHAT), "one span a phase, none a token"
    assert all(earlier.end <= later.start + 1e-3 for earlier, later in itertools.pairwise(phases))
    assert sum(phase.duration for phase in phases) == pytest.approx(whole.duration, rel=0.05)
    assert whole.duration > NUM_TOKENS * STEP_S


def test_spans_lie_under_what_caused_them(traces, receiver):
    spans = receiver.wait(traces[chat_over_http], has(*CHAT))

    parents = {span.span_id: span.name for span in spans}
    under = {name: {parents.get(span.parent_id) for span in spans if span.name == name} for name in CHAT}
    assert {name for name, found in under.items() if found == {"llm_request"}} == {
        "receive", "tokenize", "generate", "detokenize", "respond",
    }  # fmt: skip
    assert {name for name, found in under.items() if found == {"generate"}} == {
        "queue", "prefill", "decode", "worker.prefill", "worker.decode",
    }  # fmt: skip
    assert under["render_chat"] == {"tokenize"}
    facts = one(spans, "llm_request").attributes
    assert facts["gen_ai.request.id"] == "chat_over_http"
    assert facts["gen_ai.usage.completion_tokens"] == NUM_TOKENS
    assert facts["gen_ai.latency.time_to_first_token"] < facts["gen_ai.latency.e2e"]
    assert one(spans, "worker.decode").attributes["tetrad.tokens"] == NUM_TOKENS - 1


def of_call(receiver, request_id: str):
    """Return the trace of the call with an id, once it is complete."""
    found = receiver.wait_for(lambda span: span.attributes.get("gen_ai.request.id") == request_id)
    return receiver.wait(found.trace_id, has(*CHAT))


@pytest.mark.parametrize("headers", [{}, {"traceparent": "00-zzz-1-01"}, {"traceparent": f"00-{'0' * 32}-{CALLER_SPAN}-01"}])
def test_a_call_without_a_usable_traceparent_begins_a_trace(server, receiver, headers):
    request_id = f"root-{secrets.token_hex(4)}"

    assert chat(server, headers | {"x-request-id": request_id}).status_code == 200

    spans = of_call(receiver, request_id)
    assert one(spans, "llm_request").parent_id == ""
    assert {span.service for span in spans} == SERVICES


def test_what_the_caller_does_not_sample_is_not_recorded(server, receiver):
    unsampled, headers = new_trace(flags="00")
    sampled, later_headers = new_trace()

    chat(server, headers, max_tokens=2)
    chat(server, later_headers, max_tokens=2)

    receiver.wait(sampled, has(*CHAT))
    assert unsampled not in {span.trace_id for span in receiver.spans()}


def test_each_of_n_sequences_has_its_phases(server, receiver):
    trace_id, headers = new_trace()

    chat(server, headers, n=2, max_tokens=3)

    spans = receiver.wait(trace_id, has("llm_request", *2 * ("generate", "queue", "prefill", "decode", "worker.decode")))
    generated = [span for span in spans if span.name == "generate"]
    assert sorted(span.attributes["tetrad.sequence.index"] for span in generated) == [0, 1]
    assert {span.parent_id for span in spans if span.name == "decode"} == {span.span_id for span in generated}


def test_a_client_that_leaves_ends_its_spans_as_aborted(server, receiver):
    trace_id, headers = new_trace()

    body = {"messages": MESSAGES, "max_tokens": 1000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60) as response:
        next(response.iter_lines())

    spans = receiver.wait(trace_id, has("llm_request", "generate", "decode"))
    assert (one(spans, "llm_request").status, one(spans, "llm_request").reason) == (ERROR, "ABORTED")
    assert (one(spans, "generate").status, one(spans, "generate").reason) == (ERROR, "abort")
    assert one(spans, "decode").attributes["tetrad.status"] == "FINISHED_ABORTED"


def test_a_request_that_is_wrong_ends_its_span_with_the_reason(server, receiver):
    trace_id, headers = new_trace()

    assert chat(server, headers, chat_template="{{ raise_exception('no') }}").status_code == 400

    spans = receiver.wait(trace_id, has("llm_request", "tokenize", "render_chat"))
    assert {(span.status, span.reason) for span in spans if span.name != "receive"} == {(ERROR, "INVALID_ARGUMENT")}


@pytest.mark.parametrize(
    ("service", "marked", "event"),
    [("engine_core_svc", "generate", "resumed"), ("worker_svc", "decode", "worker_lost")],
)
def test_a_request_that_outlives_a_service_keeps_its_trace(server, receiver, service, marked, event):
    trace_id, headers = new_trace()
    body = {"messages": MESSAGES, "max_tokens": 60, "ignore_eos": True, "stream": True}

    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60) as response:
        lines = response.iter_lines()
        for _ in range(9):
            next(lines)
        server.process_of(service).kill()
        rest = list(lines)

    assert rest[-2:] == ["data: [DONE]", ""]
    spans = receiver.wait(trace_id, has("llm_request", "generate", "queue", "decode"))
    assert event in one(spans, marked).events
    assert one(spans, "llm_request").status != ERROR


def test_one_id_is_in_the_logs_of_every_service_and_in_the_answer(server):
    trace_id, headers = new_trace()
    request_id = f"seen-{secrets.token_hex(4)}"

    answer = chat(server, headers | {"x-request-id": request_id}, max_tokens=2)

    assert answer.headers["x-request-id"] == request_id
    server.wait_for_log(*(rf'(?=.*"request_id": "{request_id}").*"service": "{name}"' for name in LOGGING))
    lines = [json.loads(line) for line in server.output().splitlines() if line.startswith("{") and request_id in line]
    assert {(line["request_id"], line["trace_id"]) for line in lines} == {(request_id, trace_id)}


async def test_a_program_puts_its_requests_under_its_own_span(server, receiver):
    """With the lines of docs/tracing.md."""
    trace_id, headers = new_trace()
    lines = textwrap.indent(PAGE.block("trace_headers=", language="python"), "    ")
    scope: dict = {"SamplingParams": SamplingParams}
    exec(f"async def run(llm, traceparent):\n{lines}", scope)

    async with AsyncLLM(RemoteServices(server.stack_directory(), otlp_endpoint=receiver.endpoint)) as llm:
        await scope["run"](llm, headers["traceparent"])

    spans = receiver.wait(trace_id, has("llm_request", "encode", "decode", "worker.prefill"))
    assert one(spans, "llm_request").parent_id == CALLER_SPAN
    assert {span.service for span in spans} == SERVICES


# --- docs/tracing.md --------------------------------------------------------------------------------------------------


def test_the_call_of_the_page_joins_its_trace_and_is_found_in_the_log(server, receiver, tmp_path):
    call, look = PAGE.block("traceparent: "), PAGE.block("grep ").splitlines()[1]
    (tmp_path / "tetrad.log").symlink_to(server.log)

    ran = subprocess.run(["bash", "-euc", call.replace("http://127.0.0.1:8000", server.url)], capture_output=True, timeout=60)
    server.wait_for_log(*(rf'(?=.*"request_id": "question-1").*"service": "{name}"' for name in LOGGING))
    found = subprocess.run(["bash", "-euc", look], cwd=tmp_path, capture_output=True, text=True, timeout=10)

    assert ran.returncode == 0, ran.stderr
    trace_id, caller = re.findall(r"00-(\w+)-(\w+)-01", call)[0]
    assert one(receiver.wait(trace_id, has(*CHAT)), "llm_request").parent_id == caller
    assert {json.loads(line)["service"] for line in found.stdout.splitlines()} == set(LOGGING)


def test_the_page_lists_every_span_and_attribute_there_is(server, receiver):
    trace_id, headers = new_trace()
    chat(server, headers, max_tokens=3)
    httpx.post(f"{server.url}/v1/completions", json={"prompt": "Hi", "max_tokens": 3}, headers=headers, timeout=60)

    spans = receiver.wait(trace_id, has(*CHAT, *set(CHAT) - {"render_chat"}, "encode"))

    names = {span.span_id: f"`{span.name}`" for span in spans}
    told = {
        name: (service, under, set(re.findall(r"`([a-z0-9_.]+)`", facts)))
        for name, service, under, facts in ROW.findall(PAGE.text)
    }
    assert told == {
        span.name: (
            span.service.removeprefix("tetrad-").replace("-", " "),
            names.get(span.parent_id, "the caller's span"),
            set(span.attributes),
        )
        for span in spans
    }


def test_channelz_answers_as_on_the_page(server, capsys):
    target = f"unix:{server.stack_directory()}/engine-core-admin.sock"

    exec(PAGE.block("ChannelzStub", language="python").replace("127.0.0.1:50054", target))

    said = capsys.readouterr().out
    assert re.search(r"^server \d+ \d+ calls, \d+ failed$", said, re.MULTILINE)
    assert re.search(r"^channel to \S*worker.sock \d+ calls$", said, re.MULTILINE)
