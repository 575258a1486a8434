"""Metrics of a frontend: tokens and the times between them, requests by route, and refusals by reason."""

from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tetrad.frontend.observability.metrics import FrontendMetrics
from tetrad.frontend.request.request_state import RequestState
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InternalError, TetradError


@pytest.fixture
async def llm(connect):
    return await connect(max_num_requests=4)


def value(llm, name: str, **labels: str) -> float:
    """Return a sample's value, summed over the labels that are not given."""
    return sum(
        sample.value
        for family in llm.metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"tetrad:{name}" and labels.items() <= sample.labels.items()
    )


async def generate(llm, **params) -> None:
    async for _ in llm.generate("hello", SamplingParams(**params), "r"):
        pass


@pytest.mark.parametrize("n", [1, 3])
async def test_there_is_a_time_before_every_token_of_a_sequence_but_its_first(llm, n):
    await generate(llm, max_tokens=8, n=n)

    assert value(llm, "inter_token_latency_seconds_count") == n * 7
    assert value(llm, "generation_tokens_total") == n * 8
    assert value(llm, "iteration_tokens_total_sum") == n * 8 + 5
    assert value(llm, "request_max_num_generation_tokens_sum") == 8


async def test_the_times_between_tokens_add_up_to_the_time_of_decoding(llm):
    await generate(llm, max_tokens=8)

    between, decode = value(llm, "inter_token_latency_seconds_sum"), value(llm, "request_decode_time_seconds_sum")
    assert between == pytest.approx(decode)


async def test_what_is_refused_is_counted_by_its_reason(llm):
    with pytest.raises(TetradError):
        await llm.add_request("r", [7] * 100_000, SamplingParams())
    with pytest.raises(TetradError):
        for _ in range(5):
            await llm.add_request("r", "hello", SamplingParams(max_tokens=500))

    assert value(llm, "request_errors_total", reason="CONTEXT_LENGTH_EXCEEDED") == 1
    assert value(llm, "request_errors_total", reason="OVERLOADED") == 1
    assert value(llm, "admission_rejections_total", reason="OVERLOADED") == 1
    assert value(llm, "requests_unfinished") == 4


async def test_refused_pairs_are_counted_too(llm):
    """A cross-encoder's pairs are tokenized before its pooling request begins."""
    with pytest.raises(TetradError):
        await llm.texts.tokenize_pairs([("query", "x" * 100_000)])
    with pytest.raises(TetradError):
        await llm.texts.cut(["document"], 0, field="max_tokens_per_doc", text_field="text_2")

    assert value(llm, "request_errors_total", reason="CONTEXT_LENGTH_EXCEEDED") == 1
    assert value(llm, "request_errors_total") == 2


async def test_http_requests_are_counted_by_route_and_status_and_not_by_what_clients_write(http):
    await http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 1})
    await http.post("/v1/completions", json={"max_tokens": "many"})
    await http.get("/v1/responses/resp_of_somebody")
    await http.get("/wp-login.php")
    await http.request("PROPFIND", "/wp-login.php")

    families = text_string_to_metric_families((await http.get("/metrics")).text)
    [requests] = [family for family in families if family.name == "tetrad:http_requests"]
    assert {tuple(sample.labels[name] for name in ("handler", "method", "status")) for sample in requests.samples} == {
        ("/v1/completions", "POST", "200"),
        ("/v1/completions", "POST", "400"),
        ("/v1/responses/{response_id}", "GET", "404"),
        ("other", "GET", "404"),
        ("other", "other", "404"),
    }


def test_the_tokens_of_a_step_have_vllms_buckets():
    """Its dashboards and recording rules name them."""
    metrics = FrontendMetrics(model_name="m")
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]

    limits = [each.labels["le"] for each in samples if each.name == "tetrad:iteration_tokens_total_bucket"]
    assert [float(limit) for limit in limits[:-1]] == [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]


def test_inputs_that_a_failed_request_did_not_send_are_errors_and_no_aborts():
    """A pooling request sends its inputs as fast as they are answered."""
    metrics = FrontendMetrics(model_name="m")
    request = RequestState("r", None, [1], SamplingParams(), arrival_time=1.0)
    for reason in ("stop", "error", None):
        request.sequences.append(SimpleNamespace(finish_reason=reason, output_token_ids=[]))

    metrics.observe_finished(request, InternalError("no"), idle=False)

    reasons = {reason: value(SimpleNamespace(metrics=metrics), "request_success_total", finished_reason=reason)
               for reason in ("stop", "error", "abort")}  # fmt: skip
    assert reasons == {"stop": 1, "error": 2, "abort": 0}
