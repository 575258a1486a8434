"""`tetrad complete`: continues a text, from the command line or from stdin, with a running server."""

import sys

from tetrad.cli.http_client import HttpClient
from tetrad.cli.options import new_parser
from tetrad.cli.sampling_options import add_sampling_options, sampling_fields
from tetrad.services.errors import InvalidRequest


def run(arguments: list[str]) -> int:
    """Print the continuation as it arrives."""
    parser = new_parser("complete", "Continue a text with the model of a running server.")
    parser.add_argument("prompt", nargs="?", default=None, metavar="TEXT", help="The text. Not given: read from stdin.")
    add_sampling_options(parser)
    options = parser.parse_args(arguments)
    prompt = _stdin() if options.prompt is None else options.prompt
    if not prompt:
        raise InvalidRequest("There is no text to continue; give it as an argument or on stdin.", field="prompt")
    with HttpClient(options.url, api_key=options.api_key, ca_file=options.ca_file) as client:
        body = {"model": client.model_name(options.model), "prompt": prompt, **sampling_fields(options)}
        for event in client.stream("/v1/completions", body):
            for choice in event.get("choices") or ():
                print(choice.get("text") or "", end="", flush=True)
    print()
    return 0


def _stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The text on stdin is not {error.encoding}.", field="prompt") from error
