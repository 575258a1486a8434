"""A tokenizer and an engine core for the frontend's tests: real grpc.aio servers, deterministic, and killable.

Bytes are tokens (256 is BOS, 257 EOS). The engine's token at output position i is `reply(prompt, i)`, so tests know the next
token of a resumed request.
"""

from tests.frontend.fakes.alphabet import BOS, EOS, TEXT, VOCAB_SIZE, text_of
from tests.frontend.fakes.engine import FakeEngine, running_engine
from tests.frontend.fakes.server import Fake
from tests.frontend.fakes.tokenizer import FakeTokenizer

__all__ = ["BOS", "EOS", "TEXT", "VOCAB_SIZE", "Fake", "FakeEngine", "FakeTokenizer", "running_engine", "text_of"]
