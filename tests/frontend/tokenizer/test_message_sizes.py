"""Messages between frontend and tokenizer stay below their limit, both ways, whatever the requests contain."""

import asyncio
from types import SimpleNamespace

import pytest

from tetrad.frontend.net.discovery import Endpoint
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.tokenizer.client import PairTemplate, TokenizerClient
from tetrad.frontend.tokenizer.detokenizer_client import DetokenizerClient
from tetrad.frontend.tokenizer.replicas import Replica
from tetrad.frontend.tokenizer.wire import Row
from tetrad.services.errors import InvalidRequest
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES, LEAST_MAX_MESSAGE_BYTES
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.v1 import tokenizer_pb2

LONGEST_TOKEN = "\N{GRINNING FACE}" * 175
"""Of 700 bytes: the vocabularies in use have tokens of up to 512."""


class LongTokens:
    """A link to a tokenizer whose every token is the longest one; notes the sizes of all messages, both ways.

    Batch streams and unary calls echo: a token for each byte.
    """

    def __init__(self):
        self.sizes = []

    def call(self, method, request, _context):
        return self._noted(request, getattr(self, method)(request))

    def open_batches(self):
        return Stream(lambda request: self._noted(request, self._batch(request)))

    def open_detokenizer(self):
        return Stream(lambda request: self._noted(request, self._append(request)))

    def Encode(self, request):
        ids = [pack_u32(list(text.encode())) for text in request.texts]
        return tokenizer_pb2.EncodeResponse(encodings=[tokenizer_pb2.Encoding(token_ids=each) for each in ids])

    def Decode(self, request):
        return tokenizer_pb2.DecodeResponse(texts=["x" for _ in request.sequences])

    def _batch(self, request):
        answers = [tokenizer_pb2.BatchedAnswer(encode=self.Encode(call.encode)) for call in request.calls]
        return tokenizer_pb2.BatchResponse(id=request.id, answers=answers)

    def _append(self, request):
        if not request.HasField("append"):
            return None
        append = request.append
        deltas = [LONGEST_TOKEN * num_tokens for num_tokens in unpack_u32(append.num_tokens)]
        return tokenizer_pb2.DetokenizeResponse(handles=append.handles, deltas=deltas)

    async def _noted(self, request, response):
        self.sizes += [request.ByteSize(), 0 if response is None else response.ByteSize()]
        return response


class Stream:
    """Answers each message that has an answer."""

    def __init__(self, answer):
        self._answer = answer
        self._answers = asyncio.Queue()

    async def write(self, message):
        answer = await self._answer(message)
        if answer is not None:
            self._answers.put_nowait(answer)

    async def read(self):
        return await self._answers.get()

    def cancel(self):
        return True


def replicas_of(link):
    replica = Replica(Endpoint(0, "unix:/none"), link)
    replica.usable = True

    async def wait_usable():
        pass

    return SimpleNamespace(in_order=lambda affinity=b"": [replica], wait_usable=wait_usable, info=None)


def new_rows(num_rows, num_tokens, num_before):
    """Rows of new sequences, which have a prompt and so many earlier tokens."""
    rows = []
    for number in range(num_rows):
        sequence = Sequence(f"r{number}", number + 1, 0, [7] * 20, SamplingParams(), seed=0, max_tokens=1 << 20)
        sequence.output_token_ids = [7] * num_before
        rows.append(Row(sequence, [7] * num_tokens))
    return rows


KINDS = [(1, 20_000, 0), (20_000, 1, 0), (1_000, 8, 200), (40, 1, 30_000), (1, 1, 300_000)]


@pytest.mark.parametrize("kinds", [*([kind] for kind in KINDS), KINDS], ids=str)
def test_no_message_of_the_detokenize_stream_exceeds_the_limit(kinds):
    """Many rows, long rows, and rows whose handles are opened anew with all their tokens, as after a tokenizer's loss."""
    link, rows = LongTokens(), []
    for number, kind in enumerate(kinds):
        for row in new_rows(*kind):
            row.sequence.handle += number << 20
            rows.append(row)

    async def run():
        client = DetokenizerClient(replicas_of(link), recovery_timeout_s=60, stall_s=30)
        client.start()
        deltas = await client.append(rows, [row.sequence.handle for row in rows])
        await client.close()
        return deltas

    deltas = asyncio.run(run())

    assert [len(delta) for delta in deltas] == [len(LONGEST_TOKEN) * len(row.token_ids) for row in rows]
    assert max(link.sizes) <= DEFAULT_MAX_MESSAGE_BYTES


@pytest.fixture
def link():
    return LongTokens()


@pytest.fixture
def client(link):
    """With the least limit that a service can be given."""
    return TokenizerClient(
        replicas_of(link),
        recovery_timeout_s=30,
        stall_s=10,
        on_answer=lambda *_: None,
        max_message_bytes=LEAST_MAX_MESSAGE_BYTES,
    )


async def test_many_small_texts_at_once_share_messages_below_the_limit(client, link):
    texts = ["é" * (number % 1_900) for number in range(500)]

    found = await asyncio.gather(*(client.encode([text]) for text in texts))

    assert found == [[list(text.encode())] for text in texts]
    assert max(link.sizes) <= LEAST_MAX_MESSAGE_BYTES


async def test_the_texts_of_a_vocabulary_are_loaded_in_small_messages(client, link):
    """No other request waits for longer than the encoding of one of them."""
    await client.load_token_texts(range(50_000))

    assert client.text_of(49_999) == "x"
    assert max(link.sizes) <= 16 << 10


async def test_many_texts_pairs_and_ids_of_one_request_are_sent_in_messages_below_the_limit(client, link):
    texts = ["a" * 3_000] * 1_000

    await client.encode_many(texts, add_special_tokens=True, max_tokens=None, keep_end=True)
    await client.encode_pairs([(text, text) for text in texts])
    await client.decode([[7] * 100_000] * 20 + [[7]] * 50_000)

    assert max(link.sizes) <= LEAST_MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    "call",
    [
        lambda client, much: client.encode([much]),
        lambda client, much: client.encode_with_strings(much),
        lambda client, much: client.encode_pairs([("a", much)]),
        lambda client, much: client.encode_pairs([("a", "b")], template=PairTemplate(kwargs={"x": much})),
        lambda client, much: client.decode([range(len(much))]),
        lambda client, much: client.render_chat([{"role": "user", "content": much}]),
        lambda client, much: client.render_chat([], tools=[{"x": much}]),
        lambda client, much: client.render_chat([], chat_template=much),
        lambda client, much: client.render_chat([], chat_template_kwargs={"x": much}),
    ],
)
async def test_what_fits_no_message_is_refused_and_never_sent(client, link, call):
    with pytest.raises(InvalidRequest, match=f"a message of \\d+ bytes; the limit is {LEAST_MAX_MESSAGE_BYTES}") as refused:
        await call(client, "x" * LEAST_MAX_MESSAGE_BYTES)

    assert refused.value.reason == "MESSAGE_TOO_LARGE"
    assert link.sizes == []
