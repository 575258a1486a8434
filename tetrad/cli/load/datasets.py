"""Datasets: make the requests of a benchmark, as paths and JSON bodies without the model's name.

`tetrad bench` uses one dataset per run. The same seed gives the same requests, so that two servers receive the same load. Knows
OpenAI's request bodies; knows no connections.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

from tetrad.services.errors import InvalidRequest

_TOKEN_IDS = range(300, 1000)
"""Ids that are ordinary tokens in every supported vocabulary."""
_COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: its path, and the fields of its body that depend on the dataset."""

    path: str
    fields: dict[str, Any]


class Dataset(Protocol):
    """A source of requests."""

    @property
    def least_len(self) -> int:
        """A lower bound of the length of every request, prompt plus output, in tokens."""

    def prompts(self, number: int, seed: int) -> Iterator[Prompt]:
        """Yield `number` requests; equal seeds yield equal requests."""


@dataclass(frozen=True)
class RandomPrompts:
    """Prompts of random tokens without common prefixes, so that no prefix cache helps. Outputs have `output_len` tokens."""

    input_len: int
    output_len: int

    @property
    def least_len(self) -> int:
        """The length of every request."""
        return self.input_len + self.output_len

    def prompts(self, number: int, seed: int) -> Iterator[Prompt]:
        """Yield completion requests."""
        numbers = random.Random(seed)
        for _ in range(number):
            yield _completion(numbers.choices(_TOKEN_IDS, k=self.input_len), self.output_len)


@dataclass(frozen=True)
class SharedPrefixes:
    """Prompts that start with one of `num_prefixes` prefixes of `prefix_len` tokens, followed by `input_len` random tokens."""

    num_prefixes: int
    prefix_len: int
    input_len: int
    output_len: int

    @property
    def least_len(self) -> int:
        """The length of every request."""
        return self.prefix_len + self.input_len + self.output_len

    def prompts(self, number: int, seed: int) -> Iterator[Prompt]:
        """Yield completion requests; the prefixes are used in turn."""
        numbers = random.Random(seed)
        prefixes = [numbers.choices(_TOKEN_IDS, k=self.prefix_len) for _ in range(self.num_prefixes)]
        for prefix in islice(cycle(prefixes), number):
            yield _completion([*prefix, *numbers.choices(_TOKEN_IDS, k=self.input_len)], self.output_len)


@dataclass(frozen=True)
class Conversations:
    """The requests of a file, in order, repeated if there are too few.

    Args:
        requests: the requests of the file; the first turns of all conversations precede the second ones.
        output_len: maximum number of output tokens, if the line has no `output_tokens`.
        ignore_eos: whether every output has its maximum number of tokens.
    """

    requests: Sequence[Prompt]
    output_len: int
    ignore_eos: bool = False

    @property
    def least_len(self) -> int:
        """Zero: the lengths of texts in tokens are not known."""
        return 0

    def prompts(self, number: int, seed: int) -> Iterator[Prompt]:
        """Yield the file's requests; the seed has no effect."""
        del seed
        for prompt in islice(cycle(self.requests), number):
            yield Prompt(prompt.path, {"max_tokens": self.output_len, "ignore_eos": self.ignore_eos, **prompt.fields})


def read_conversations(path: Path, output_len: int, *, ignore_eos: bool = False) -> Conversations:
    """Read a file with a JSON object per line: `messages` of a conversation or a `prompt`, and optionally `output_tokens`.

    Every message of the user becomes a request, with all messages before it in the file.

    Raises:
        InvalidRequest: the file cannot be read, or a line has another form; the error names the line.
    """
    try:
        lines = path.read_text("utf-8-sig").split("\n")  # some editors write a byte-order mark at the start of a file
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--dataset-path {path} cannot be read: {error}.", field="dataset_path") from error
    conversations = [_turns(line, f"{path}, line {place}") for place, line in enumerate(lines, 1) if line.strip()]
    longest = max(map(len, conversations), default=0)
    requests = [turns[place] for place in range(longest) for turns in conversations if place < len(turns)]
    if not requests:
        raise InvalidRequest(f"--dataset-path {path} holds no request.", field="dataset_path")
    return Conversations(requests, output_len, ignore_eos)


def _turns(line: str, place: str) -> list[Prompt]:
    """Return the requests of a line."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{place} is not JSON: {error}.", field="dataset_path") from error
    messages, prompt = (entry.get("messages"), entry.get("prompt")) if isinstance(entry, dict) else (None, None)
    limit = _limit(entry, place) if isinstance(entry, dict) else {}
    if isinstance(prompt, str) and prompt and messages is None:
        return [Prompt(_COMPLETIONS, {"prompt": prompt, **limit})]
    if not isinstance(messages, list) or not all(isinstance(each, dict) and "role" in each for each in messages):
        text = f'{place} needs either "messages", a list of objects with a role, or "prompt", a text that is not empty.'
        raise InvalidRequest(text, field="dataset_path")
    ends = [number for number, message in enumerate(messages, 1) if message["role"] == "user"]
    return [Prompt(CHAT, {"messages": messages[:end], **limit}) for end in ends]


def _limit(entry: dict[str, Any], place: str) -> dict[str, int]:
    number = entry.get("output_tokens")
    if number is None:
        return {}
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        text = f'{place}: "output_tokens" must be a whole number of at least 1, got {json.dumps(number)}.'
        raise InvalidRequest(text, field="dataset_path")
    return {"max_tokens": number}


def _completion(token_ids: list[int], output_len: int) -> Prompt:
    return Prompt(_COMPLETIONS, {"prompt": token_ids, "max_tokens": output_len, "ignore_eos": True})
