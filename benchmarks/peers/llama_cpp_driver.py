"""llama.cpp through its own batch interface: one llama_decode per step, with one token of every sequence. See lines.py."""

import ctypes
import os
import random
import sys
import time

import llama_cpp
import numpy as np

from benchmarks.peers.lines import answer, take_stdout

_MAX_BATCH = 64
_MAX_LENGTH = 128
"""Maximum number of tokens of a sequence when several decode; a single prompt has a separate context."""
_MAX_PROMPT = 2048
# Discards llama.cpp's log.
_DROP_LOGS = llama_cpp.llama_log_callback(lambda *_: None)


class LlamaCpp:
    """llama.cpp as a lines.Engine."""

    def __init__(self, path: str) -> None:
        llama_cpp.llama_log_set(_DROP_LOGS, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}.")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._many = self._context(_MAX_BATCH * _MAX_LENGTH, _MAX_BATCH)
        self._one = self._context(_MAX_PROMPT, 1)
        self._batch = llama_cpp.llama_batch_init(_MAX_PROMPT, 0, 1)

    def decode(self, batch: int, steps: int, context: int) -> float:
        """Fill the sequences and run one step that is not counted; return the seconds of `steps` further steps."""
        self._clear(self._many)
        for row in range(batch):
            self._run(self._many, [(token, position, row) for position, token in enumerate(_tokens(context))], {context - 1})
        everyone = set(range(batch))
        tokens = self._run(self._many, [(token, context, row) for row, token in enumerate(_tokens(batch))], everyone)
        start = time.perf_counter()
        for position in range(context + 1, context + 1 + steps):
            tokens = self._run(self._many, [(token, position, row) for row, token in enumerate(tokens)], everyone)
        return time.perf_counter() - start

    def prefill(self, length: int) -> float:
        """Return the seconds from a prompt to its first token."""
        self._clear(self._one)
        tokens = _tokens(length)
        start = time.perf_counter()
        self._run(self._one, [(token, position, 0) for position, token in enumerate(tokens)], {length - 1})
        return time.perf_counter() - start

    def _context(self, num_cells: int, num_sequences: int) -> ctypes.c_void_p:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = num_cells, num_sequences
        params.n_batch = _MAX_PROMPT
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        context: ctypes.c_void_p = llama_cpp.llama_init_from_model(self._model, params)
        if not context:
            raise RuntimeError(f"llama.cpp has no context of {num_cells} tokens for {num_sequences} sequences.")
        return context

    def _clear(self, context: ctypes.c_void_p) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)

    def _run(self, context: ctypes.c_void_p, entries: list[tuple[int, int, int]], wanted: set[int]) -> list[int]:
        """Compute (token, position, sequence) entries; return the most likely next token after each entry in `wanted`."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for index, (token, position, sequence) in enumerate(entries):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = index in wanted
        if status := llama_cpp.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode of {len(entries)} tokens gave {status}.")
        rows = (llama_cpp.llama_get_logits_ith(context, index) for index in sorted(wanted))
        return [int(np.ctypeslib.as_array(row, (self._vocab_size,)).argmax()) for row in rows]


def _tokens(count: int) -> list[int]:
    return [random.randrange(1000, 41_000) for _ in range(count)]


def main() -> None:
    """Load the .gguf file that the first argument names, and answer requests."""
    answers = take_stdout()
    answer(LlamaCpp(sys.argv[1]), answers)


if __name__ == "__main__":
    main()
