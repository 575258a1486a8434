"""/health, /ping, /version, /metrics, /load, /server_info: for load balancers, dashboards and administrators."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.documentation.schemas import Schema, field, obj, one_of_type
from tetrad.frontend.api.http.requests.named import models_of, named_llm
from tetrad.frontend.api.http.schemas.errors import error_body, error_response
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.config import FrontendSettings
from tetrad.services.version import VERSION

router = APIRouter()

_VERSION_SCHEMA = obj("*", version=field("string", "Of Tetrad."))
_READY_SCHEMA = obj(
    "*",
    status=field("string", "`ready` or `not ready`."),
    problem=field("string", "Why requests cannot be served. Empty: they can."),
    draining=field("boolean", "Whether this server is shutting down."),
    dependencies=field(
        "array",
        "The tokenizers, of which one is enough, and the engine cores, of which one with its worker is.",
        items=obj(
            "*",
            name=field("string", "Kind and number."),
            ready=field("boolean", "Whether it can do its work now."),
            problem=field("string", "Why not. Empty: it can."),
        ),
    ),
)
_READY_EXAMPLE = {
    "status": "ready",
    "problem": "",
    "draining": False,
    "dependencies": [
        {"name": "tokenizer 0", "ready": True, "problem": ""},
        {"name": "tokenizer 1", "ready": False, "problem": "not connected"},
        {"name": "engine core 0", "ready": True, "problem": ""},
    ],
}
_LOAD_SCHEMA = obj("*", server_load=field("integer", "Requests that this server has taken and not finished."))
# Limits that a request can exceed; other settings are not public.
_LIMITS = (
    "max_body_bytes",
    "max_header_bytes",
    "max_logprobs",
    "max_answer_logprobs",
    "max_stop_strings",
    "max_stop_chars",
    "max_bad_words",
    "max_bad_word_chars",
    "max_n",
    "max_completion_prompts",
    "max_media_bytes",
    "request_timeout_s",
)


def _limit(name: str) -> Schema:
    return field(["number", "null"], FrontendSettings.model_fields[name].description or "")


_POOLING = {
    "description": "What it pools; null: it generates.",
    "anyOf": [
        {"type": "null"},
        obj(
            "*",
            tasks=field("array", "Kinds of answers, the default first.", items={"type": "string"}),
            embedding_size=field("integer", "Length of an embedding; 0: it makes none."),
            is_matryoshka=field("boolean", "Whether embeddings may be shortened."),
            matryoshka_dimensions=field("array", "Lengths that they may have; empty: any.", items={"type": "integer"}),
            labels=field("array", "Names of the classes.", items={"type": "string"}),
            num_labels=field("integer", "Classes; 0: it does not classify."),
            is_causal=field("boolean", "Whether a token sees only those before it."),
        ),
    ],
}
_MODALITY = obj(
    "*",
    modality=field("string", "Kind of media: image."),
    max_items=field("integer", "Most of them in a prompt; 0: any number."),
    max_embeds_per_item=field("integer", "Most embeddings that one becomes."),
)
_INFO_SCHEMA = obj(
    "*",
    version=field("string", "Of Tetrad."),
    model=field("string", "What the served names stand for."),
    served_model_names=field("array", "What clients may ask for.", items={"type": "string"}),
    max_model_len=field("integer", "Longest prompt plus output, in tokens."),
    engine=obj(
        "*",
        engine_index=field("integer", "Its place among the engine cores."),
        epoch=field("integer", "Another number after each restart."),
        model=field("string", "What it runs."),
        max_model_len=field("integer", "Longest prompt plus output, in tokens."),
        num_gpu_blocks=field("integer", "KV blocks in all."),
        kv_cache_tokens=field("integer", "Tokens that the KV cache can hold."),
        block_size=field("integer", "Tokens of a KV block."),
        dtype=field("string", "Of the activations."),
        weights_dtype=field("string", "What most of the weights are stored in; empty: unknown."),
        kv_cache_dtype=field("string", "Of keys and values in the KV cache; empty: unknown."),
        tensor_parallel_size=field("integer", "Workers that share each layer."),
        pipeline_parallel_size=field("integer", "Workers that share the layers."),
        data_parallel_size=field("integer", "Engine cores with the same model."),
        max_num_seqs=field("integer", "Maximum number of requests in a step."),
        max_num_batched_tokens=field("integer", "Maximum number of tokens in a step."),
        vocab_size=field("integer", "Token ids are smaller than this."),
        device=field("string", "What it computes on."),
        version=field("string", "Of its Tetrad."),
        supports_lora=field("boolean", "Whether it takes adapters."),
        max_loras=field("integer", "Maximum number of different adapters in a step; 0: it takes none."),
        max_cpu_loras=field("integer", "Maximum number of adapters in memory; 0: it takes none."),
        priority_scheduling=field("boolean", "Whether `priority` orders requests."),
        supports_shared_sampling_params=field("boolean", "Whether requests of one message may share their parameters."),
        max_message_bytes=field("integer", "Largest message that it reads, in bytes."),
        num_speculative_tokens=field("integer", "Most drafts of a request in a step, by its options; 0: it has none."),
        contract_revision=field("integer", "Revision of the contract that it was built from; 0: a release before revision 3."),
        logits_processors=field("array", "Its custom logits processors.", items={"type": "string"}),
        logprobs_mode=field("string", "The values that log-probabilities are, such as raw_logprobs."),
        capabilities=field("array", "What it supports besides.", items={"type": "string"}),
        max_media_bytes=field("integer", "Most bytes of images of all its unfinished requests; 0: it takes none."),
        modalities=field("array", "The media that its workers read, such as images; empty: text only.", items=_MODALITY),
        kv_role=one_of_type("What it does with KV blocks of prompts for others.", "none producer consumer both"),
        pooling=_POOLING,
        is_encoder_decoder=field("boolean", "Whether an encoder reads audio that a decoder attends to."),
        supports_transcription=field("boolean", "Whether it writes the text of recordings."),
    )
    | {"description": "What the first engine core says of itself."},
    tokenizer=obj(
        "*",
        vocab_size=field("integer", "Token ids are smaller than this."),
        tokenizer_hash=field("string", "Equal for equal tokenizers."),
        has_chat_template=field("boolean", "Whether it can render conversations."),
    )
    | {"description": "What the tokenizer says of itself."},
    limits=obj("*", **{name: _limit(name) for name in _LIMITS}) | {"description": "Limits of one request."},
)


@router.get("/health/live", **documented(tag="monitor", errors=()))
async def live() -> Response:
    """Return 200 as long as this process works. Restart the process if it does not answer. Other services are not checked."""
    return JsonResponse({"status": "alive"})


@router.get("/health/ready", **documented(answer=_READY_SCHEMA, example=_READY_EXAMPLE, tag="monitor", errors=(503,)))
async def ready(request: Request) -> Response:
    """Return 200 if requests can be served now, else 503; both with the state of the services that this server needs."""
    report = models_of(request).readiness.report()
    body: dict[str, Any] = {
        "status": "ready" if report.ready else "not ready",
        "problem": report.problem,
        "draining": report.draining,
        "dependencies": [
            {"name": each.name, "ready": not each.problem, "problem": each.problem} for each in report.dependencies
        ],
    }
    if report.ready:
        return JsonResponse(body)
    error = error_response(report.error())
    body["error"] = error_body(report.error()).error
    return JsonResponse(body, error.status_code, headers={"retry-after": error.headers["retry-after"]})


@router.get("/health", **documented(answer=_READY_SCHEMA, example=_READY_EXAMPLE, tag="monitor", errors=(503,)))
async def health(request: Request) -> Response:
    """Answer as /health/ready does; vLLM has this name."""
    return await ready(request)


@router.get("/ping", **documented(tag="monitor", errors=(503,)))
@router.post("/ping", **documented(tag="monitor", errors=(503,)))
async def ping(request: Request) -> Response:
    """Answer as /health does; some platforms request this name."""
    return await health(request)


@router.get("/version", **documented(answer=_VERSION_SCHEMA, example={"version": VERSION}, tag="monitor", errors=()))
async def version() -> Response:
    """Return the version of Tetrad."""
    return JsonResponse({"version": VERSION})


@router.get("/metrics", **documented(tag="monitor", errors=()))
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format; if several frontends share the port, those of all of them."""
    return Response(await models_of(request).render_metrics(), headers={"content-type": CONTENT_TYPE_LATEST})


@router.get("/load", **documented(answer=_LOAD_SCHEMA, example={"server_load": 3}, tag="monitor"))
async def load(request: Request) -> Response:
    """Return the number of unfinished requests of this server."""
    return JsonResponse({"server_load": models_of(request).num_unfinished_requests})


@router.get("/server_info", **documented(answer=_INFO_SCHEMA, tag="monitor", errors=(401, 404, 500, 503)))
async def server_info(
    request: Request,
    model: Annotated[str, Query(description="Name of a model, where several are served. Empty: the first.")] = "",
) -> Response:
    """Return facts about a model, its engine cores, its tokenizer and the limits. Contains no keys and no addresses."""
    llm = named_llm(request, model)
    settings = request.app.state.settings
    tokenizer = llm.tokenizer_info
    info = {
        "version": VERSION,
        "model": llm.model_names.root,
        "served_model_names": llm.model_names.names,
        "max_model_len": llm.max_model_len,
        "engine": asdict(llm.engine_info)
        | {"data_parallel_size": llm.num_engines, "kv_role": llm.engine_info.kv_role.name.lower()},
        "tokenizer": {
            "vocab_size": tokenizer.vocab_size,
            "tokenizer_hash": tokenizer.tokenizer_hash,
            "has_chat_template": tokenizer.has_chat_template,
        },
        "limits": {name: getattr(settings, name) for name in _LIMITS},
    }
    return JsonResponse(info)
