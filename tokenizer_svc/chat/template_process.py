"""`python -m tetrad.tokenizer_svc.chat.template_process BYTES SECONDS`: renders chat templates, one request at a time.

A template is an untrusted program. It runs in this process, so it never blocks the parent's event loop. The parent kills the
process after a time limit, and the system limits its memory. Requests and answers are JSON; see services/sandbox/process.py.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tetrad.services.sandbox.process import serve_frames
from tetrad.tokenizer_svc.chat.messages import (
    ChatError,
    Message,
    count_media,
    parse_kwargs,
    parse_messages,
    parse_optional_objects,
    rename_developers,
    rename_reasoning,
    write_arguments,
)
from tetrad.tokenizer_svc.chat.template import CompiledTemplate, compile_template
from tetrad.tokenizer_svc.chat.tools_in_words import describe_tools, write_calls_and_results


def answer(request: dict[str, Any]) -> dict[str, str]:
    """Return {"prompt"} or {"error", "field"} for a request from renderer.py."""
    try:
        return {"prompt": render(request)}
    except ChatError as error:
        return {"error": error.message, "field": error.field}
    except MemoryError:
        compile_template.cache_clear()
        return {"error": "The conversation needs more memory than rendering may use.", "field": "messages_json"}
    except RecursionError:
        return {"error": "The conversation or its template is nested too deeply.", "field": "messages_json"}


def render(request: dict[str, Any]) -> str:
    """Return the prompt of a request. Raises ChatError if it cannot be rendered."""
    messages = parse_messages(request["messages_json"])
    _check_media(count_media(messages), request["num_media"])
    tools = parse_optional_objects(request["tools_json"], "tools_json")
    documents = parse_optional_objects(request["documents_json"], "documents_json")
    kwargs = parse_kwargs(request["chat_template_kwargs_json"])
    templates: dict[str, str] = request["templates"]
    source = templates.get("tool_use", templates["default"]) if tools else templates["default"]
    template = compile_template(source)
    _adapt(messages, tools, template)
    return template.render(
        messages,
        {"tools": tools, "documents": documents, **request["special_tokens"], **kwargs},
        add_generation_prompt=request["add_generation_prompt"],
        continue_final_message=request["continue_final_message"],
        max_chars=request["max_chars"],
        media_texts=request["media_texts"],
    )


def _check_media(num_parts: Mapping[str, int], num_items: Mapping[str, int]) -> None:
    for modality in num_parts.keys() | num_items.keys():
        parts, items = num_parts.get(modality, 0), num_items.get(modality, 0)
        if parts != items:
            text = f"messages_json has {parts} {modality} part(s), and media has {items} {modality}(s)."
            raise ChatError(text, "messages_json")


def _adapt(messages: list[Message], tools: list[dict[str, Any]] | None, template: CompiledTemplate) -> None:
    """Convert parts of the conversation that the template does not support: to text, or to another form."""
    facts = template.facts
    if not facts.knows_developers:
        rename_developers(messages)
    rename_reasoning(messages, facts.reasoning_field)
    if facts.joins_arguments:
        write_arguments(messages)
    if not facts.knows_calls:
        write_calls_and_results(messages)
    if tools and not facts.knows_tools:
        describe_tools(messages, tools, template.source)


def prepare(_: bytes) -> Callable[[bytes], bytes]:
    """Return a function that answers requests with {"prompt"} or {"error", "field"}."""
    return lambda request: json.dumps(answer(json.loads(request))).encode()


if __name__ == "__main__":
    serve_frames(prepare)
