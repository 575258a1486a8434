"""`tetrad chat`: a conversation with a running server, or one question with --quick."""

import sys
from typing import Any

from tetrad.cli.http_client import HttpClient
from tetrad.cli.options import new_parser
from tetrad.cli.sampling_options import add_sampling_options, sampling_fields

Message = dict[str, str]


def run(arguments: list[str]) -> int:
    """Talk until the input ends."""
    parser = new_parser("chat", "Talk to a running server; an empty line or Ctrl-D ends it.")
    add_sampling_options(parser)
    parser.add_argument("--system-prompt", default=None, help="What the model is told first. Unset: nothing.")
    parser.add_argument("-q", "--quick", metavar="MESSAGE", default=None, help="Send one message, print the answer, end.")
    options = parser.parse_args(arguments)
    messages: list[Message] = []
    if options.system_prompt is not None:
        messages.append({"role": "system", "content": options.system_prompt})
    with HttpClient(options.url, api_key=options.api_key, ca_file=options.ca_file) as client:
        body = {"model": client.model_name(options.model), **sampling_fields(options)}
        if options.quick is not None:
            _say(client, body, messages, options.quick)
            return 0
        while text := _ask():
            _say(client, body, messages, text)
    return 0


def _ask() -> str:
    """Return the next line of the person; empty when they are done."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return ""


def _say(client: HttpClient, body: dict[str, Any], messages: list[Message], text: str) -> None:
    messages.append({"role": "user", "content": text})
    answer = []
    for event in client.stream("/v1/chat/completions", {**body, "messages": messages}):
        for choice in event.get("choices", ()):
            delta = choice["delta"].get("content") or ""
            answer.append(delta)
            print(delta, end="", flush=True)
    print()
    messages.append({"role": "assistant", "content": "".join(answer)})
