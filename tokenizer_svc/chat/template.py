"""Chat templates: compiles templates once, and renders them within an output limit.

Runs in the renderer's process, which the caller limits in time and memory; this file has the limits within Jinja: no
attributes of Python objects, no changes to arguments, a limited number of characters. Filters, globals and the handling of
`continue_final_message` are those of transformers, for which templates are written.
"""

import copy
import datetime
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tetrad.tokenizer_svc.chat.messages import ChatError, Message, flatten_content, split_content, write_unknown_media
from tetrad.tokenizer_svc.chat.template_facts import facts_of

_FIELD = "chat_template"
_MAX_TEMPLATE_CHARS = 256 << 10
"""Maximum length of a template, about ten times the longest one of known models. Compiled, it takes up to a hundred times its
size."""
_MAX_ERROR_CHARS = 1000
"""Maximum length of an error's text: a template may raise a text of any length, and errors are sent in headers."""
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class CompiledTemplate:
    """A template that is ready to render.

    Args:
        source: Jinja text; raises ChatError if it is not valid.

    Attributes:
        source: the text.
        facts: the features of the template, to which conversations are adapted.
    """

    def __init__(self, source: str) -> None:
        if len(source) > _MAX_TEMPLATE_CHARS:
            text = f"The chat template has {len(source)} characters, the limit is {_MAX_TEMPLATE_CHARS}."
            raise ChatError(text, _FIELD)
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            message = (error.message or "")[:_MAX_ERROR_CHARS]
            raise ChatError(f"The chat template is not valid: line {error.lineno}: {message}", _FIELD) from error
        except (
            SyntaxError,
            ValueError,
        ) as error:  # of the compiled Python code: loops nested too deeply, long numbers
            message = str(error)[:_MAX_ERROR_CHARS]
            raise ChatError(f"The chat template cannot be compiled: {message}", _FIELD) from error
        self.source = source
        self.facts = facts_of(source, tree)

    def render(
        self,
        messages: list[Message],
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        max_chars: int,
        media_texts: Mapping[str, str],
    ) -> str:
        """Return the prompt of a conversation.

        Args:
            messages: checked messages; changed to the form that the template reads.
            variables: tools, documents, special tokens and the request's further variables.
            add_generation_prompt: end with the opening of an assistant turn.
            continue_final_message: leave the last message open.
            max_chars: maximum length of the prompt.
            media_texts: texts of items for templates that read only texts, by modality.

        Raises:
            ChatError: the template refuses the conversation, with its own text, or it fails.
        """
        if not self.facts.reads_parts:
            flatten_content(messages, media_texts)
        else:
            write_unknown_media(messages, media_texts, self.source)
            if not self.facts.reads_texts:
                split_content(messages)
        final = _open_final_message(messages) if continue_final_message else None
        prompt = self._run(
            {**variables, "messages": messages, "add_generation_prompt": add_generation_prompt}, max_chars=max_chars
        )
        return prompt if final is None else _cut_after_final_message(prompt, final)

    def _run(self, variables: Mapping[str, Any], *, max_chars: int) -> str:
        blocks, num_chars = [], 0
        try:
            for block in self._template.generate(variables):
                num_chars += len(block)
                if num_chars > max_chars:
                    break
                blocks.append(block)
        except jinja2.TemplateError as error:
            raise ChatError((error.message or type(error).__name__)[:_MAX_ERROR_CHARS], _FIELD) from error
        except MemoryError:
            compile_template.cache_clear()  # so that cached templates do not take the next template's memory
            raise ChatError("The chat template needs more memory than it may use.", _FIELD) from None
        except Exception as error:  # a template can raise any error of Python
            message = f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]
            raise ChatError(f"The chat template failed: {message}", _FIELD) from error
        if num_chars > max_chars:
            raise ChatError(f"The chat template writes more than {max_chars} characters, the longest prompt.", _FIELD)
        return "".join(blocks)


@lru_cache(maxsize=8)
def compile_template(source: str) -> CompiledTemplate:
    """Return the compiled template, from a small cache."""
    return CompiledTemplate(source)


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's tokens for training; rendering writes only its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return only the body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON; Jinja's own filter would escape it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))  # a template may pass any value


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)


def _open_final_message(messages: list[Message]) -> str:
    """Append a tag to the last message's text, and return the text without it."""
    final = messages[-1] = copy.deepcopy(messages[-1])
    content = final.get("content")
    if isinstance(content, list):
        for part in reversed(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                text: str = part["text"]
                part["text"] = text + _CONTINUE_TAG
                return text
    if isinstance(content, str):
        final["content"] = content + _CONTINUE_TAG
        return content
    raise ChatError("continue_final_message is set, but the last message has no text to continue.", "messages_json")


def _cut_after_final_message(prompt: str, final: str) -> str:
    tag = _CONTINUE_TAG.strip()
    if final.strip() not in prompt or tag not in prompt:
        raise ChatError(
            "continue_final_message is set, but the chat template does not write the last message as it is.", _FIELD
        )
    cut = prompt.rindex(tag)
    # A template that strips messages has removed the tag's space, and would have removed the text's trailing space, too.
    return prompt[:cut] if prompt.startswith(_CONTINUE_TAG, cut) else prompt[:cut].rstrip()
