"""Small tokenizer calls share messages, and each gets the answer of a separate call."""

import asyncio

import pytest

from tests.frontend.fakes import FakeTokenizer
from tetrad.frontend.net import batching as bursts
from tetrad.frontend.tokenizer.client_batches import TokenizerBatches, goes_together
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.request_context import NO_CONTEXT, RequestContext, bind_context, current_context
from tetrad.services.rpc.status import to_status
from tetrad.v1 import tokenizer_pb2


def text(text="a"):
    return tokenizer_pb2.EncodeRequest(texts=[text])


def chat(messages_json=b"[]", **fields):
    return tokenizer_pb2.RenderChatRequest(messages_json=messages_json, **fields)


class Tokenizers:
    """Answer each text with itself as ids, once they are let go."""

    def __init__(self):
        self.batches = []
        self.go_on = asyncio.Event()
        self.lost = set()
        self.outcome = self._echo

    async def send(self, request, lost):
        self.batches.append([call.encode.texts[0] for call in request.calls])
        self.requests, self.context = request.calls, current_context()
        await self.go_on.wait()
        lost |= self.lost
        return self.outcome(request)

    def _echo(self, request):
        encodings = [tokenizer_pb2.Encoding(token_ids=call.encode.texts[0].encode()) for call in request.calls]
        answers = [tokenizer_pb2.BatchedAnswer(encode=tokenizer_pb2.EncodeResponse(encodings=[each])) for each in encodings]
        return tokenizer_pb2.BatchResponse(answers=answers)


@pytest.fixture
async def tokenizers():
    return Tokenizers()


@pytest.fixture
async def batches(tokenizers):
    return TokenizerBatches(tokenizers.send, patience_s=30.0)


def ask(batches, *texts, lost=None):
    return [asyncio.create_task(batches.ask(text(each), set() if lost is None else lost)) for each in texts]


async def turns(number=5):
    for _ in range(number):
        await asyncio.sleep(0)


def ids_of(answers):
    return [answer.encodings[0].token_ids for answer in answers]


async def test_calls_that_come_while_one_is_under_way_are_the_next_message(batches, tokenizers):
    first = ask(batches, "a")
    await turns()
    others = ask(batches, "b", "c") + ask(batches, "d")
    await turns()
    sent_before_the_answer = list(tokenizers.batches)
    tokenizers.go_on.set()

    assert ids_of(await asyncio.gather(*first, *others)) == [b"a", b"b", b"c", b"d"]
    assert sent_before_the_answer == [["a"]]
    assert tokenizers.batches == [["a"], ["b", "c", "d"]]


async def test_calls_of_one_moment_go_together_at_once(batches, tokenizers):
    tokenizers.go_on.set()

    await asyncio.gather(*ask(batches, "a", "b", "c"))

    assert tokenizers.batches == [["a", "b", "c"]]


async def test_calls_that_come_turn_by_turn_of_the_loop_go_together(batches, tokenizers, monkeypatch):
    monkeypatch.setattr(bursts, "_LONGEST_S", 60.0)  # also on a machine that stops for a while
    tokenizers.go_on.set()
    calls = []
    for each in "abcd":
        calls += ask(batches, each)
        await asyncio.sleep(0)

    assert ids_of(await asyncio.gather(*calls)) == [b"a", b"b", b"c", b"d"]
    assert tokenizers.batches == [["a", "b", "c", "d"]]


async def test_a_full_message_does_not_wait_for_the_one_before(batches, tokenizers):
    first = ask(batches, "a")
    await turns()
    others = ask(batches, *(str(number) for number in range(40)))
    await turns()
    sizes_before_the_answer = [len(batch) for batch in tokenizers.batches]
    tokenizers.go_on.set()
    await asyncio.gather(*first, *others)

    assert sizes_before_the_answer == [1, 32]
    assert [len(batch) for batch in tokenizers.batches] == [1, 32, 8]


async def test_a_call_whose_caller_has_left_is_not_sent(batches, tokenizers):
    first = ask(batches, "a")
    await turns()
    left, stayed = ask(batches, "b", "c")
    await turns()
    left.cancel()
    await turns()
    tokenizers.go_on.set()
    await asyncio.gather(*first, stayed)

    assert tokenizers.batches == [["a"], ["c"]]


async def test_an_error_is_that_of_its_call_alone(batches, tokenizers):
    def refuse_the_first(request):
        response = tokenizers._echo(request)
        response.answers[0].error.CopyFrom(to_status(InvalidRequest("The text is too long.", field="texts")))
        return response

    tokenizers.outcome = refuse_the_first
    tokenizers.go_on.set()
    bad, good = ask(batches, "a", "b")

    with pytest.raises(InvalidRequest, match="too long"):
        await bad
    assert ids_of([await good]) == [b"b"]


def _refuse(_):
    raise Unsupported("Batch is not supported by this server.")


def _answer_another_number(_):
    return tokenizer_pb2.BatchResponse(answers=[tokenizer_pb2.BatchedAnswer()])


def _answer_nothing(request):
    return tokenizer_pb2.BatchResponse(answers=[tokenizer_pb2.BatchedAnswer() for _ in request.calls])


def _answer_something_else(request):
    prompt = tokenizer_pb2.BatchedAnswer(render_chat=tokenizer_pb2.RenderChatResponse(prompt="a"))
    return tokenizer_pb2.BatchResponse(answers=[prompt for _ in request.calls])


@pytest.mark.parametrize(
    "outcome",
    [lambda _: None, _refuse, _answer_another_number, _answer_nothing, _answer_something_else],
    ids=["lost", "an older tokenizer", "another number of answers", "empty answers", "answers to something else"],
)
async def test_what_hinders_a_batch_leaves_its_calls_to_be_made_alone(batches, tokenizers, outcome):
    tokenizers.outcome, tokenizers.lost = outcome, {("replica", 1)}
    tokenizers.go_on.set()
    lost = set()

    assert await asyncio.gather(*ask(batches, "a", "b", lost=lost)) == [None, None]
    assert lost == {("replica", 1)}  # who broke over it counts against each: one of them may be the reason


async def test_a_batch_that_is_not_answered_in_time_holds_up_nobody_any_longer(tokenizers):
    impatient = TokenizerBatches(tokenizers.send, patience_s=0.05)
    stuck = ask(impatient, "a")
    await turns()
    behind = ask(impatient, "b")

    assert await asyncio.gather(*stuck) == [None]
    tokenizers.go_on.set()
    assert ids_of(await asyncio.gather(*behind)) == [b"b"]


async def test_each_call_has_the_context_of_its_request_and_the_batch_none(batches, tokenizers):
    tokenizers.go_on.set()
    waiting = []
    for request_id in ("first", "second"):
        with bind_context(RequestContext(request_id)):
            waiting += ask(batches, request_id)
    await asyncio.gather(*waiting)

    assert [dict(call.trace_headers) for call in tokenizers.requests] == [{"x-request-id": "first"}, {"x-request-id": "second"}]
    assert tokenizers.context == NO_CONTEXT


@pytest.mark.parametrize(
    ("call", "together"),
    [
        (text("short"), True),
        (chat(), True),
        (text("long " * 1_000), False),
        (chat(b"[" + b" " * 5_000 + b"]"), False),
        (chat(chat_template="{{ messages }}"), False),
        (tokenizer_pb2.EncodeRequest(texts=["a"], text_pairs=["b"], chat_template="{{ messages }}"), False),
        (tokenizer_pb2.DecodeRequest(), False),
    ],
    ids=["short text", "short chat", "long text", "long chat", "a client's template", "a client's template of pairs", "ids"],
)
def test_only_what_is_small_and_cannot_loop_goes_together(call, together):
    assert goes_together(call) is together


async def test_a_burst_of_texts_and_chats_takes_few_messages(connect, tokenizer):
    llm = await connect()
    texts, chats = [f"text {number}" for number in range(30)], [[{"role": "user", "content": str(n)}] for n in range(30)]

    ids = await asyncio.gather(*(llm.texts.tokenize(each) for each in texts))
    prompts = await asyncio.gather(*(llm.backends.tokenizer.render_chat(each) for each in chats))

    assert ids == [list(each.encode()) for each in texts]
    assert [each.prompt for each in prompts] == [f"<user>{number}\n<assistant>" for number in range(30)]
    assert tokenizer.num_calls + len(tokenizer.rendered) == 60
    assert 2 <= tokenizer.num_batches <= 4


class OlderTokenizer(FakeTokenizer):
    async def Batch(self, request_iterator, context):
        raise NotImplementedError


async def test_an_older_tokenizer_is_asked_one_by_one(connect, sockets):
    older = OlderTokenizer(sockets / "older")
    await older.start()
    try:
        llm = await connect(tokenizer_targets=(older.target,))

        assert await asyncio.gather(*(llm.texts.tokenize(each) for each in "abc")) == [[97], [98], [99]]
        assert older.num_calls == 3
    finally:
        await older.kill()
