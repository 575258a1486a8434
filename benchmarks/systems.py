"""Systems: one interface to Tetrad and to peers, for benchmarks that compare them.

The same client calls all servers over HTTP; libraries run in separate processes. During a comparison all systems keep running,
and all but the measured one are idle.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from benchmarks.figures import median
from benchmarks.http_load import load, rest
from benchmarks.options import Options
from benchmarks.peers.installed import LLAMA_CPP, SMOLLM2, TRANSFORMERS, VLLM, PeerModel, home, is_installed, python_of
from benchmarks.peers.lines import DrivenEngine
from benchmarks.peers.vllm_server import vllm_server
from benchmarks.stack import MODEL, running
from benchmarks.streams import new_prompt

TETRAD_FLOAT32 = "Tetrad, float32"
TETRAD_GGUF = "Tetrad, Q4_1"
PLAIN_TORCH = "plain torch"
OURS = (TETRAD_FLOAT32, TETRAD_GGUF)


class System(Protocol):
    """A system that generates tokens, and measures its rates."""

    def decode(self, batch: int, steps: int, context: int) -> float:
        """Return output tokens/s of `batch` sequences together, after `context` prompt tokens and without the first token."""

    def prefill(self, length: int) -> float:
        """Return prompt tokens/s up to the first token, for a new prompt that no cache has."""


class Server:
    """A server with OpenAI's API, measured by its client.

    All rounds use the same prompts for decoding: their prefixes are cached after the first round, so that only decoding is
    measured.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._prompts: dict[tuple[int, int], list[list[int]]] = {}

    def decode(self, batch: int, steps: int, context: int) -> float:
        """See System."""
        if (batch, context) not in self._prompts:
            self._prompts[batch, context] = [new_prompt(context) for _ in range(batch)]
            self._load(batch, 2, context)
        return self._load(batch, steps + 1, context)

    def prefill(self, length: int) -> float:
        """See System."""
        return length / load(self._url, MODEL, 1, num_requests=1, max_tokens=1, prompt_len=length).ttft_s[0]

    def _load(self, batch: int, max_tokens: int, context: int) -> float:
        prompts = self._prompts[batch, context]
        return load(self._url, MODEL, batch, num_requests=batch, max_tokens=max_tokens, prompts=prompts).decode_tokens_per_s


@dataclass(frozen=True)
class Library:
    """An engine in a separate process."""

    engine: DrivenEngine

    def decode(self, batch: int, steps: int, context: int) -> float:
        """See System."""
        rest()
        return batch * steps / self.engine.decode(batch, steps, context)

    def prefill(self, length: int) -> float:
        """See System."""
        rest()
        return length / self.engine.prefill(length)


def open_systems(exits: ExitStack, options: Options) -> dict[str, System]:
    """Start Tetrad's systems and the installed peers, or without peers the plain torch loop; `exits` ends them."""
    starts: dict[str, Callable[[ExitStack], System]] = {
        TETRAD_FLOAT32: lambda to: Server(to.enter_context(running("--dtype", "float32", "--device", "cpu")).url),
        TETRAD_GGUF: lambda to: Server(to.enter_context(running("--device", "cpu")).url),
    }
    ours = {name: start(exits) for name, start in starts.items()}
    return {**ours, **(open_peers(exits, options, SMOLLM2) or {PLAIN_TORCH: _plain_torch(exits)})}


def open_peers(exits: ExitStack, options: Options, model: PeerModel) -> dict[str, System]:
    """Start the installed peers with a model, or none with --no-peers; `exits` ends them."""
    starts: dict[str, Callable[[ExitStack], System]] = {
        VLLM: lambda to: Server(to.enter_context(vllm_server(model.floats)).url),
        TRANSFORMERS: lambda to: _library(to, "vllm", "transformers_driver", model.floats),
        LLAMA_CPP: lambda to: _library(to, "llama", "llama_cpp_driver", model.gguf),
    }
    return {name: start(exits) for name, start in starts.items() if options.with_peers and is_installed(name, model)}


def _library(exits: ExitStack, environment: str, module: str, model: str) -> Library:
    engine = DrivenEngine(python_of(environment), f"benchmarks.peers.{module}", str(home() / model))
    return Library(exits.enter_context(engine))


def _plain_torch(exits: ExitStack) -> Library:
    return Library(exits.enter_context(DrivenEngine(sys.executable, "benchmarks.plain_torch", MODEL)))


def best_peer(figures: Mapping[str, Sequence[float]]) -> str:
    """Return the name of the fastest peer, by the medians of tokens/s."""
    return max((name for name in figures if name not in OURS), key=lambda name: median(figures[name]))
