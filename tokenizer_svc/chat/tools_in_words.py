"""Tools in words: renders tools, calls and results as plain text, for models whose chat template does not support them.

Runs in the renderer's process. The text follows the hermes format, which many models were trained on, unless the template
writes calls in its own way; the frontend parses the same format, since it checks the template for the same features (see
frontend/parsing/formats.py).
"""

import json
from collections.abc import Sequence
from typing import Any

from tetrad.tokenizer_svc.chat.messages import Message

_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

{way}"""
_HERMES_WAY = """\
For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
# DeepSeek's templates write calls, but do not list the tools.
_DEEPSEEK_WAY = """\
To call functions, write the calls exactly so, at the end of your answer, and nothing behind them:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
Each further call is another <｜tool▁call▁begin｜>...<｜tool▁call▁end｜> before <｜tool▁calls▁end｜>."""
_DEEPSEEK_SIGN, _FENCE = "<｜tool▁call▁begin｜>", "```"
_FENCED_CALL = "function<｜tool▁sep｜>FUNCTION_NAME\n```json\n{ARGUMENTS_AS_JSON_OBJECT}\n```"
_BARE_CALL = "FUNCTION_NAME<｜tool▁sep｜>{ARGUMENTS_AS_JSON_OBJECT}"


def describe_tools(messages: list[Message], tools: Sequence[dict[str, Any]], template: str) -> None:
    """Describe the tools and the form of calls in the system message; add one if there is none.

    Args:
        messages: the conversation; changed.
        tools: at least one.
        template: the chat template's text; its own form of calls is used if it is known.
    """
    text = _TOOLS.format(tools="\n".join(_json(tool) for tool in tools), way=_way(template))
    if messages[0].get("role") == "system":
        messages[0] = {**messages[0], "content": _with_text(messages[0].get("content"), text, between="\n\n")}
    else:
        messages.insert(0, {"role": "system", "content": text})


def _way(template: str) -> str:
    if _DEEPSEEK_SIGN not in template:
        return _HERMES_WAY
    return _DEEPSEEK_WAY.format(call=_FENCED_CALL if _FENCE in template else _BARE_CALL)


def write_calls_and_results(messages: list[Message]) -> None:
    """Convert the calls of assistant messages to text, and the results of tools to messages of the user."""
    written: list[Message] = []
    for message in messages:
        if message.get("tool_calls"):
            written.append(_with_calls_written(message))
        elif message.get("role") != "tool":
            written.append(message)
        elif written and _is_result(written[-1]):
            # Templates without tools require that messages of users and assistants alternate.
            written[-1]["content"] += "\n" + _result(message.get("content"))
        else:
            written.append({"role": "user", "content": _result(message.get("content"))})
    messages[:] = written


def _with_calls_written(message: Message) -> Message:
    calls = "\n".join(f"<tool_call>\n{_json(_call(call))}\n</tool_call>" for call in message["tool_calls"])
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": _with_text(message.get("content"), calls)}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    return {"name": function.get("name"), "arguments": function.get("arguments") or {}}


def _result(content: object) -> str:
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)
    return f"<tool_response>\n{content or ''}\n</tool_response>"


def _is_result(message: Message) -> bool:
    content = message.get("content")
    return message.get("role") == "user" and isinstance(content, str) and content.startswith("<tool_response>")


def _with_text(content: Any, text: str, *, between: str = "\n") -> Any:
    """Return a content with a text appended, in the same form: list or text."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": text}]
    return f"{content}{between}{text}" if content else text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
