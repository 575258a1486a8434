"""PairEncoding: encodes pairs of texts, such as a query and a document, as the model reads them.

Called by the servicer on its event loop. A pair becomes one text if a template writes it; otherwise the tokenizer joins the
ids.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tetrad.services.rpc.columns import U32_BYTES
from tetrad.tokenizer_svc.api.wire import decode_pair_template, decode_pairs, encode_pair
from tetrad.tokenizer_svc.chat.pair_prompts import PairPrompts, PairTemplate
from tetrad.tokenizer_svc.observability.metrics import TokenizerMetrics
from tetrad.tokenizer_svc.tokenizer.encoding_threads import EncodingThreads
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer
from tetrad.v1 import tokenizer_pb2


class PairEncoding:
    """Encodes the pairs of one servicer.

    Args:
        tokenizer: joins the ids of pairs that no template writes.
        prompts: writes the other pairs.
        threads: those of the servicer.
        metrics: those of the servicer.
        encode_prompt: returns the ids of a written pair.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompts: PairPrompts,
        threads: EncodingThreads,
        metrics: TokenizerMetrics,
        encode_prompt: Callable[[str], Awaitable[tokenizer_pb2.Encoding]],
    ) -> None:
        self._tokenizer, self._prompts, self._threads, self._metrics = tokenizer, prompts, threads, metrics
        self._encode_prompt = encode_prompt

    async def encode(self, request: tokenizer_pb2.EncodeRequest) -> Sequence[tokenizer_pb2.Encoding]:
        """Return the ids of each pair. Raises InvalidRequest for a text that is too long."""
        max_tokens = request.max_tokens if request.HasField("max_tokens") else None
        pairs = decode_pairs(request)
        text_bytes = self._threads.text_bytes
        sizes = [text_bytes(first, field="texts") + text_bytes(second, field="text_pairs") for first, second in pairs]
        template = decode_pair_template(request)
        if self._prompts.writes(template):
            return [await self._encode_written(pair, template, max_tokens) for pair in pairs]
        encodes = [partial(self._encode_joined, *pair, max_tokens) for pair in pairs]
        return await self._threads.run_all(list(zip(encodes, sizes, strict=True)))

    async def _encode_written(
        self, pair: tuple[str, str], template: PairTemplate, max_tokens: int | None
    ) -> tokenizer_pb2.Encoding:
        """Return the ids of a pair's text, written by a template; the second text is cut to have at most `max_tokens` ids."""
        while True:
            encoding = await self._encode_prompt(await self._prompts.write(pair, template))
            num_tokens = len(encoding.token_ids) // U32_BYTES
            if max_tokens is None or num_tokens <= max_tokens:
                return encoding
            surplus = num_tokens - max_tokens
            pair = await self._threads.run(partial(self._prompts.shortened, pair, surplus, max_tokens))

    def _encode_joined(self, first: str, second: str, max_tokens: int | None) -> tokenizer_pb2.Encoding:
        started = time.perf_counter()
        encoded = self._tokenizer.encode_pair(first, second, max_tokens=max_tokens)
        self._metrics.observe_encoded(time.perf_counter() - started, len(encoded.token_ids))
        return encode_pair(encoded)
