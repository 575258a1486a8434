"""`tetrad transcribe`: writes what is said in a recording, with a running server or one that runs for this command.

With `--model` and without `--url` the command starts a server; otherwise it uses a running one, as `tetrad complete` does.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tetrad.cli.http_client import DEFAULT_URL, HttpClient
from tetrad.cli.options import add_engine_options, new_parser
from tetrad.cli.own_server import START_TIMEOUT_HELP, serving, unless_failed
from tetrad.cli.sampling_options import add_server_credentials
from tetrad.cli.termination import TERMINATED, cancel_at_sigterm
from tetrad.cli.waiting_line import WaitingLine
from tetrad.library.aside import run_aside
from tetrad.services.errors import InvalidRequest

_FORMATS = ("text", "srt", "vtt", "json", "verbose_json")
_FIELDS = ("language", "prompt")
_MEGABYTE = 1_000_000

Write = Callable[[str], None]


def run(arguments: list[str]) -> int:
    """Print the text of a recording: as it is written, or whole in the formats that end with the recording."""
    options = _parse(arguments)
    recording = _read(options.file)
    try:
        asyncio.run(_transcribe(options, recording))
    except asyncio.CancelledError:
        return TERMINATED
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = new_parser(
        "transcribe",
        "Write what is said in a recording, with the model of a running server; with --model and without --url, a server runs "
        "for this command.",
        usage="FILE [OPTIONS]",
    )
    parser.add_argument("file", metavar="FILE", help="The recording: WAV, MP3, FLAC, Ogg, AAC, M4A or WebM.")
    text = "Code of the spoken language, such as en. Unset: the model finds it."
    parser.add_argument("--language", default=None, metavar="CODE", help=text)
    text = "text: as it is written; srt, vtt: subtitles; json: the text; verbose_json: segments with their times as well."
    parser.add_argument("--format", choices=_FORMATS, default="text", help=text)
    parser.add_argument("--translate", action="store_true", help="Write the text in English.")
    text = "Text that came before the recording: its style and its names are continued."
    parser.add_argument("--prompt", default=None, metavar="TEXT", help=text)
    text = f"URL of the server. Unset: {DEFAULT_URL}; with --model, a server is started."
    parser.add_argument("--url", default=None, help=text)
    add_server_credentials(parser)
    parser.add_argument(
        "--timeout-s", type=float, default=3600.0, metavar="X", help="Maximum time without a part of the answer, in seconds."
    )
    parser.add_argument("--start-timeout-s", type=float, default=None, metavar="X", help=START_TIMEOUT_HELP)
    add_engine_options(parser, model_flag=True)
    parser.set_defaults(model=None)
    options = parser.parse_args(arguments)
    for name in ("timeout_s", "start_timeout_s"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            text = f"--{name.replace('_', '-')} must be more than 0, got {value}."
            raise InvalidRequest(text, field=name)
    return options


def _read(path: str) -> tuple[str, bytes]:
    """Return the name and the content of a file; InvalidRequest if it cannot be read, or is empty."""
    try:
        data = Path(path).expanduser().read_bytes()
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a zero byte; RuntimeError: no home directory
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InvalidRequest(f"The recording {path!r} cannot be read: {reason}.", field="file") from error
    if not data:
        raise InvalidRequest(f"The recording {path!r} is empty.", field="file")
    return Path(path).name, data


async def _transcribe(options: argparse.Namespace, recording: tuple[str, bytes]) -> None:
    cancel_at_sigterm()
    model = None
    if options.model is None or options.url is not None:  # a running server, which may have several models
        options.url, model, options.model = options.url or DEFAULT_URL, options.model, None
    async with serving(options) as (url, wait_failed):
        name, data = recording
        async with WaitingLine(f"{name} ({len(data) / _MEGABYTE:.1f} MB)") as line:

            def write(text: str) -> None:
                line.end()
                print(text, end="", flush=True)

            await unless_failed(run_aside(partial(_send, options, url, model, recording, write)), wait_failed())


def _send(options: argparse.Namespace, url: str, model: str | None, recording: tuple[str, bytes], write: Write) -> None:
    """Send the recording and write the answer. Runs in a thread of its own."""
    path = f"/v1/audio/{'translations' if options.translate else 'transcriptions'}"
    with HttpClient(url, api_key=options.api_key, ca_file=options.ca_file, timeout_s=options.timeout_s) as client:
        fields = {"model": client.model_name(model), "response_format": options.format}
        fields |= {name: value for name in _FIELDS if (value := getattr(options, name)) is not None}
        if options.format != "text":
            write(f"{client.post_form(path, fields, recording).rstrip()}\n")
            return
        for event in client.stream_form(path, fields, recording):
            for choice in event.get("choices") or ():
                if text := (choice.get("delta") or {}).get("content"):
                    write(text)
                if choice.get("finish_reason") not in (None, "stop"):
                    print(f"The text is not complete: {choice['finish_reason']}.", file=sys.stderr)
        write("\n")
