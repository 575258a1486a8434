"""A line of a batch file, and the request that it is."""

import json

from tetrad.cli.batch_file.lines import BatchRequest

GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
REQUEST = BatchRequest(1, "a", "/v1/completions", {"prompt": "x"})


def line(**changes: object) -> str:
    return json.dumps({**GOOD, **changes})


def request(custom_id: str) -> BatchRequest:
    return BatchRequest(1, custom_id, "/v1/completions", {})
