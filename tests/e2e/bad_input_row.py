"""One row of the table of bad input: a wrong value, the APIs that can express it, and the expected error."""

from dataclasses import dataclass, field
from typing import Any

HTTP, GRPC, PYTHON = "http", "grpc", "python"
ALL = (HTTP, GRPC, PYTHON)
NO_GRPC = (HTTP, PYTHON)  # protobuf's types cannot hold it
NO_PYTHON = (HTTP, GRPC)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class Row:
    """One wrong request.

    Attributes:
        name: of the test.
        reason: part of the message.
        param: the field at fault, as errors name it.
        status: of the HTTP response.
        apis: where it can be said.
        params: sampling parameters, by SamplingParams' names.
        prompt: of a completion.
        messages: of a chat; the row is about a chat if there are any.
        options: of the chat: chat_template, tools and the like, as HTTP names them.
        model: asked for.
        path, fields, content, headers: of the HTTP request, if it is more than the above; `content` goes as it is.
    """

    name: str
    reason: str
    param: str | None = None
    status: int = 400
    apis: tuple[str, ...] = ALL
    params: dict[str, Any] = field(default_factory=dict)
    prompt: Any = "Hello"
    messages: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    path: str = COMPLETIONS
    fields: dict[str, Any] = field(default_factory=dict)
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


def sampling(reason: str, apis: tuple[str, ...] = ALL, param: str | None = None, **params: Any) -> Row:
    """A wrong sampling parameter; the last one given is at fault."""
    name = param or list(params)[-1]
    return Row(f"{name}={str(params[name])[:24]}", reason, name, apis=apis, params=params)


def structured(reason: str, apis: tuple[str, ...] = ALL, **constraint: Any) -> Row:
    """A constraint on the output that cannot be."""
    name = f"structured:{','.join(constraint)}={str(next(iter(constraint.values()), ''))[:16]}"
    return Row(name, reason, "structured_outputs", apis=apis, params={"structured_outputs": constraint})


def prompt(name: str, value: Any, reason: str, apis: tuple[str, ...] = ALL, **more: Any) -> Row:
    """A prompt that is none."""
    return Row(f"prompt:{name}", reason, "prompt", apis=apis, prompt=value, **more)


def chat(name: str, messages: Any, reason: str, param: str | None, apis: tuple[str, ...] = ALL, **options: Any) -> Row:
    """A conversation that is none."""
    return Row(f"chat:{name}", reason, param, apis=apis, messages=messages, options=options)


def http(name: str, reason: str, param: str | None = None, **more: Any) -> Row:
    """What only HTTP can say."""
    return Row(name, reason, param, apis=(HTTP,), **more)


def remote(name: str, reason: str, param: str | None = None, **more: Any) -> Row:
    """What only a client of a server can say."""
    return Row(name, reason, param, apis=(HTTP, GRPC), **more)
