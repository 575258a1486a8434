"""Ollama objects: the answers of Ollama's API as msgspec structs."""

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tetrad.frontend.api.http.schemas.objects import TokenLogprob

_MODEL = Meta(description="The model's name, as in the request.")
_CREATED = Meta(description="Time of this object, RFC 3339 in UTC.")
_THINKING = Meta(description="New text of the reasoning, from models that mark their reasoning.")
_LOGPROBS = Annotated[
    list[TokenLogprob] | UnsetType, Meta(description="Log-probabilities of the new tokens, if the request sets logprobs.")
]


class Progress(msgspec.Struct, kw_only=True):
    """Progress of an answer. Only the last object has counts and durations."""

    done: Annotated[bool, Meta(description="Whether this is the last object of the answer.")] = False
    done_reason: Annotated[str | UnsetType, Meta(description="stop, length or load.")] = UNSET
    total_duration: Annotated[int | UnsetType, Meta(description="Nanoseconds from the arrival of the request to its end.")] = (
        UNSET
    )
    load_duration: Annotated[
        int | UnsetType, Meta(description="Nanoseconds of loading: always 0, since the model is loaded at start.")
    ] = UNSET
    prompt_eval_count: Annotated[int | UnsetType, Meta(description="Number of prompt tokens.")] = UNSET
    prompt_eval_duration: Annotated[int | UnsetType, Meta(description="Nanoseconds until the first token.")] = UNSET
    eval_count: Annotated[int | UnsetType, Meta(description="Number of generated tokens.")] = UNSET
    eval_duration: Annotated[int | UnsetType, Meta(description="Nanoseconds from the first token to the end.")] = UNSET


class Generated(Progress, kw_only=True):
    """The answer of /api/generate, or one line of a streamed answer."""

    model: Annotated[str, _MODEL]
    created_at: Annotated[str, _CREATED]
    response: Annotated[str, Meta(description="New text of the answer.")] = ""
    thinking: Annotated[str | UnsetType, _THINKING] = UNSET
    logprobs: _LOGPROBS = UNSET


class CalledFunction(msgspec.Struct):
    """The function of a tool call."""

    name: Annotated[str, Meta(description="Name of the function.")]
    arguments: Annotated[
        dict[str, Any], Meta(description="Its arguments, as an object.", extra_json_schema={"additionalProperties": True})
    ]


class Called(msgspec.Struct):
    """A tool call."""

    id: Annotated[str, Meta(description="Identifier of the call.")]
    function: Annotated[CalledFunction, Meta(description="Function and arguments.")]


class AssistantMessage(msgspec.Struct):
    """The assistant's message, or a part of it."""

    role: Annotated[str, Meta(description="Always assistant.")] = "assistant"
    content: Annotated[str, Meta(description="New text of the answer.")] = ""
    thinking: Annotated[str | UnsetType, _THINKING] = UNSET
    tool_calls: Annotated[list[Called] | UnsetType, Meta(description="New tool calls; each is complete.")] = UNSET


class Chatted(Progress, kw_only=True):
    """The answer of /api/chat, or one line of a streamed answer."""

    model: Annotated[str, _MODEL]
    created_at: Annotated[str, _CREATED]
    message: Annotated[AssistantMessage, Meta(description="New part of the assistant's message.")]
    logprobs: _LOGPROBS = UNSET


class Embedded(msgspec.Struct):
    """The answer of /api/embed."""

    model: Annotated[str, _MODEL]
    embeddings: Annotated[list[list[float]], Meta(description="One embedding for each input, in their order.")]
    total_duration: Annotated[int, Meta(description="Nanoseconds from the arrival of the request to its end.")]
    load_duration: Annotated[int, Meta(description="Nanoseconds of loading: always 0, since the model is loaded at start.")]
    prompt_eval_count: Annotated[int, Meta(description="Number of tokens of all inputs.")]


class OneEmbedding(msgspec.Struct):
    """The answer of /api/embeddings."""

    embedding: Annotated[list[float], Meta(description="Embedding of the prompt.")]


class ModelDetails(msgspec.Struct):
    """Details of a model."""

    parent_model: Annotated[str, Meta(description="Base model of a LoRA adapter. Empty: the model is no adapter.")]
    quantization_level: Annotated[str, Meta(description="Data type of the weights. Empty: unknown.")]


class ModelEntry(msgspec.Struct):
    """A model that clients can use."""

    name: Annotated[str, Meta(description="Value of `model` in requests.")]
    model: Annotated[str, Meta(description="The same as `name`.")]
    digest: Annotated[str, Meta(description="SHA-256 of the names of the model, in place of that of its files.")]
    modified_at: Annotated[str, Meta(description="Start of the server, RFC 3339 in UTC.")]
    details: Annotated[ModelDetails, Meta(description="Details of the model.")]


class ModelEntries(msgspec.Struct):
    """The answer of /api/tags."""

    models: Annotated[list[ModelEntry], Meta(description="All models; the first one is the default.")]


class RunningModel(msgspec.Struct):
    """A loaded model."""

    name: Annotated[str, Meta(description="Value of `model` in requests.")]
    model: Annotated[str, Meta(description="The same as `name`.")]
    digest: Annotated[str, Meta(description="SHA-256 of the names of the model, in place of that of its files.")]
    details: Annotated[ModelDetails, Meta(description="Details of the model.")]
    context_length: Annotated[int, Meta(description="Maximum length of prompt and output together, in tokens.")]


class RunningModels(msgspec.Struct):
    """The answer of /api/ps."""

    models: Annotated[list[RunningModel], Meta(description="All models: each one is always loaded.")]


class ShownModel(msgspec.Struct):
    """The answer of /api/show."""

    modified_at: Annotated[str, Meta(description="Start of the server, RFC 3339 in UTC.")]
    template: Annotated[str, Meta(description="Chat template of the model, in Jinja. Empty: the model has none.")]
    parameters: Annotated[str, Meta(description="Sampling defaults of the model, one in a line.")]
    details: Annotated[ModelDetails, Meta(description="Details of the model.")]
    model_info: Annotated[
        dict[str, int | str], Meta(description="Further details; their names start with `general.` or `tetrad.`.")
    ]
    capabilities: Annotated[list[str], Meta(description="completion, tools, thinking or embedding.")]


class VersionBody(msgspec.Struct):
    """The answer of /api/version."""

    version: Annotated[
        str, Meta(description="Version of Ollama whose API this server follows; that of the server is at /version.")
    ]


def timestamp(unix_s: float | None = None) -> str:
    """Return a time as RFC 3339 in UTC; None: now."""
    moment = datetime.now(UTC) if unix_s is None else datetime.fromtimestamp(unix_s, UTC)
    return moment.isoformat().replace("+00:00", "Z")
