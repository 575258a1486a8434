"""Structured outputs: time per output token of a batch, and time to the first token, against plain requests.

`python -m benchmarks.structured_outputs` measures constrained and plain loads alternately on one stack, and takes medians over
all rounds. The schema has 2 KB. The time to the first token is measured with a new schema, which must be compiled, and with a
cached one.
"""

import argparse
import json
import random
import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.http_load import LoadResult
from benchmarks.http_load import load as run_load
from benchmarks.stack import MODEL, PROMPT_LEN, serving

SCHEMA_BYTES = 2048


def schema(seed: int) -> dict[str, Any]:
    """Return a schema of SCHEMA_BYTES for documents that do not end soon: a long array of records of many kinds of values."""
    numbers = random.Random(seed)
    properties: dict[str, Any] = {"name": {"type": "string", "maxLength": 30}}
    for kind in _kinds(numbers):
        item = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
        found = {"type": "array", "minItems": 10_000, "items": item}
        if len(json.dumps(found)) >= SCHEMA_BYTES:
            return found
        properties[f"field_{numbers.randrange(10**6)}"] = kind
    raise AssertionError("there is always another kind")


def _kinds(numbers: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        yield {"type": "integer", "minimum": 0, "maximum": numbers.randrange(10, 10**6)}
        yield {"enum": [f"choice {numbers.randrange(1000)}" for _ in range(4)]}
        yield {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}
        yield {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "number"}, "maxItems": 5}]}
        yield {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False}


def load(url: str, batch: int, max_tokens: int, document: dict[str, Any] | None) -> LoadResult:
    """Run one batch of requests, constrained by the schema `document` unless it is None."""
    fields = {} if document is None else {"structured_outputs": {"json": document}}
    return run_load(
        url, model=MODEL, concurrency=batch, num_requests=batch, max_tokens=max_tokens, prompt_len=PROMPT_LEN, fields=fields
    )  # fmt: skip


def measure(url: str, *, batch: int, max_tokens: int, rounds: int) -> dict[str, float]:
    """Return medians in milliseconds, by name."""
    seen: dict[str, list[float]] = {name: [] for name in ("plain", "constrained", "plain_first", "new_first", "known_first")}
    known = schema(0)
    load(url, batch, 4, known)  # the first constrained request of a stack also fetches the tokenizer
    for number in range(rounds):
        seen["plain"] += load(url, batch, max_tokens, None).tpot_s
        seen["constrained"] += load(url, batch, max_tokens, known).tpot_s
        for repeat in range(3):
            seen["plain_first"] += load(url, 1, 2, None).ttft_s
            seen["new_first"] += load(url, 1, 2, schema(1 + 3 * number + repeat)).ttft_s
            seen["known_first"] += load(url, 1, 2, known).ttft_s
    return {name: 1000 * statistics.median(values) for name, values in seen.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    with serving("--device", args.device) as url:
        found = measure(url, batch=args.batch, max_tokens=args.max_tokens, rounds=args.rounds)
    ratio = found["constrained"] / found["plain"]
    print(
        f"time per output token at batch {args.batch}, ms: plain {found['plain']:.2f}, constrained {found['constrained']:.2f}"
    )
    print(f"  ratio {ratio:.3f}, limit 1.25")
    print(f"time to the first token, ms: plain {found['plain_first']:.1f}, a {len(json.dumps(schema(1)))}-byte schema")
    for name in ("new", "known"):
        first = found[f"{name}_first"]
        print(f"  {name}: {first:.1f}, {first - found['plain_first']:+.1f}, limit +200")


if __name__ == "__main__":
    main()
