"""The Detokenize stream: invalid answers of a tokenizer are refused, and no handle stays open."""

import asyncio

import pytest

from tests.frontend.fakes import FakeTokenizer
from tests.frontend.tokenizer.streams import LONG, start, until
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import PoisonousRequest, Unavailable


def cut(response):
    response.handles = b"abc"


def one_delta_more(response):
    response.deltas.append("zz")


def text_of_another(response):
    response.handles += b"\x77\0\0\0"
    response.deltas.append("zz")


@pytest.mark.parametrize("garble", [cut, one_delta_more, text_of_another])
async def test_an_answer_that_contradicts_itself_is_asked_for_again(llm, engine, tokenizer, garble):
    real, num = tokenizer._answer, 0

    def answer(decoders, append):
        nonlocal num
        num += bool(append.handles)
        response = real(decoders, append)
        if num == 2:
            garble(response)
        return response

    tokenizer._answer = answer

    assert await start(llm) == LONG[:60]
    assert llm.backends.detokenizer.num_streams == 2
    assert len(engine.requests) == 1, "the engine has nothing to do with it"


async def test_an_answer_to_nothing_ends_the_stream(llm, engine, tokenizer, monkeypatch):
    """It would be taken for the answer to the next step, and that one for the answer to the step after it."""
    real = tokenizer.Detokenize

    async def twice(request_iterator, context):
        async for response in real(request_iterator, context):
            yield response
            if tokenizer.num_appends == 2:
                yield response

    monkeypatch.setattr(tokenizer, "Detokenize", twice)
    await tokenizer.kill()
    await tokenizer.start()

    assert await start(llm) == LONG[:60]


async def test_a_sequence_that_ends_while_it_waits_for_a_tokenizer_is_not_left_open_there(llm, engine, tokenizer):
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)
    await tokenizer.kill()
    await engine.take(1)
    await until(llm.backends.detokenizer._turn.locked)

    await llm.abort("r")
    await task
    await tokenizer.start()
    await engine.allow(None)
    await start(llm, "one")
    await start(llm, "another")

    assert not llm.backends.detokenizer._open
    assert len(tokenizer.open_handles) <= 1, "the last one is closed with the next message"


async def test_handles_are_closed_when_their_sequences_end(llm, engine, tokenizer):
    for place in range(5):
        await start(llm, f"r{place}")

    assert not llm.backends.detokenizer._open
    assert len(tokenizer.open_handles) <= 1, "the last one is closed with the next message"


async def test_a_stream_that_was_given_up_long_ago_does_not_end_the_one_after_it(llm, tokenizer):
    detokenizer = llm.backends.detokenizer
    old = detokenizer._call
    await tokenizer.kill()
    await tokenizer.start()
    await until(lambda: detokenizer._call not in (old, None))

    detokenizer._give_up(old, "a write that failed late")

    assert detokenizer._connected.is_set()
    assert await start(llm) == LONG[:60]


async def test_a_replica_that_comes_while_another_stalls_gets_the_step(connect, engine, tokenizer, second):
    """There was nobody else to ask when the step was sent."""
    await second.kill()
    llm = await connect(tokenizer_targets=(tokenizer.target, second.target), tokenizer_stall_s=0.2, recovery_timeout_s=20)
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)
    await engine.take(7)
    await tokenizer.until_brought(7)

    tokenizer.hung.clear()
    await engine.allow(None)
    call = asyncio.create_task(llm.texts.tokenize("abc"))
    await until(lambda: tokenizer.num_calls)
    await asyncio.sleep(0.3)  # longer than a stall
    await second.start()

    async with asyncio.timeout(8):
        assert await task == LONG[:60]
        assert await call == list(b"abc")
    tokenizer.hung.set()


async def test_what_is_slow_everywhere_is_not_moved_back_and_forth(connect, engine, tokenizer, second):
    llm = await connect(tokenizer_targets=(tokenizer.target, second.target), tokenizer_stall_s=0.05, recovery_timeout_s=20)
    for each in (tokenizer, second):
        each.hung.clear()

    task = start(llm, max_tokens=1)
    await asyncio.sleep(1.5)
    for each in (tokenizer, second):
        each.hung.set()

    assert await task == LONG[:1]
    assert llm.backends.detokenizer.num_messages <= 7, "0.05 s, then twice as long each time"


async def test_a_step_is_waited_for_where_there_is_no_other_tokenizer(connect, engine, tokenizer):
    """There is nothing to win by asking the same one again."""
    llm = await connect(tokenizer_stall_s=0.05, recovery_timeout_s=20)
    tokenizer.hung.clear()
    task = start(llm, max_tokens=1)
    await asyncio.sleep(0.4)

    tokenizer.hung.set()

    assert await task == LONG[:1]
    assert llm.backends.detokenizer.num_messages == 1


async def test_the_answer_to_a_step_that_was_given_up_is_not_taken_for_that_to_the_next(connect, engine, tokenizer):
    llm = await connect(recovery_timeout_s=0.3)
    tokenizer.hung.clear()
    with pytest.raises(Unavailable, match="tokenizer"):
        await start(llm, "first")

    tokenizer.hung.set()

    assert await start(llm, "second") == LONG[:60]


async def test_a_tokenizer_that_answers_again_is_asked_in_turn_again(connect, engine, tokenizer, second):
    llm = await connect(tokenizer_targets=(tokenizer.target, second.target), tokenizer_stall_s=0.1, recovery_timeout_s=20)
    await until(lambda: len(llm.backends._replicas.in_order()) == 2)
    tokenizer.hung.clear()
    # One by one: together they would go to one tokenizer.
    await asyncio.gather(*(llm.texts.tokenize("a" * 5_000) for _ in range(2)))
    await start(llm, max_tokens=2)
    tokenizer.hung.set()
    second.hung.clear()
    assert await start(llm, max_tokens=3) == LONG[:3]
    assert await llm.texts.tokenize("b") == [98]
    second.hung.set()

    assert [replica.suspect for replica in llm.backends._replicas.replicas] == [False, True]


class Crashing(FakeTokenizer):
    """Its connection breaks over one text, as that of a process that crashes does."""

    async def Encode(self, request, context):
        if "poison" in request.texts[0]:
            self.num_calls += 1
            self.crash = asyncio.create_task(self._crash())
            await asyncio.Event().wait()
        return await super().Encode(request, context)

    async def _crash(self):
        await self.kill()
        await self.start()


async def test_a_text_that_ends_every_tokenizer_is_given_up_after_the_third_and_others_are_not(connect, sockets, engine):
    fakes = [Crashing(sockets / f"c{i}") for i in range(2)]
    for fake in fakes:
        await fake.start()
    llm = await connect(tokenizer_targets=tuple(fake.target for fake in fakes), recovery_timeout_s=20)

    poison = asyncio.create_task(llm.texts.tokenize("poison"))
    others = [asyncio.create_task(llm.texts.tokenize(f"text {i}")) for i in range(5)]
    with pytest.raises(PoisonousRequest, match="3 tokenizers were lost while they worked on this request"):
        await asyncio.wait_for(poison, 10)

    assert await asyncio.gather(*others) == [list(f"text {i}".encode()) for i in range(5)]
    assert 3 <= sum(fake.num_calls for fake in fakes) - 5 <= 3 + 15
    assert await llm.texts.tokenize("later") == list(b"later")
    for fake in fakes:
        await fake.kill()


class WithoutNames(FakeTokenizer):
    """Its connection breaks over the first calls of Decode, as that of a stopped machine does; then Decode may hang."""

    def __init__(self, path, *, num_losses, hangs=False):
        super().__init__(path)
        self.num_losses, self.hangs = num_losses, hangs

    async def Decode(self, request, context):
        if self.num_losses:
            self.num_losses -= 1
            self.crash = asyncio.create_task(self._crash())
            await asyncio.Event().wait()
        if self.hangs:
            await asyncio.Event().wait()
        return await super().Decode(request, context)

    async def _crash(self):
        await self.kill()
        await self.start()


async def test_log_probabilities_have_their_texts_however_many_tokenizers_are_lost_meanwhile(connect, sockets, engine):
    fake = WithoutNames(sockets / "c", num_losses=4)
    await fake.start()
    llm = await connect(tokenizer_targets=(fake.target,), recovery_timeout_s=20)

    params = SamplingParams(max_tokens=1, logprobs=2)
    async with asyncio.timeout(20):
        *_, last = [output async for output in llm.generate([104, 105], params, "r")]

    [position] = last.outputs[0].logprobs
    assert fake.num_losses == 0
    assert [found.decoded_token for found in position.values()] == [chr(token_id) for token_id in position]
    await fake.kill()


async def test_a_request_fails_rather_than_show_log_probabilities_without_texts(connect, sockets, engine):
    fake = WithoutNames(sockets / "c", num_losses=0, hangs=True)
    await fake.start()
    llm = await connect(tokenizer_targets=(fake.target,), recovery_timeout_s=0.3)

    with pytest.raises(Unavailable, match=r"did not answer within 0\.3 s"):
        await asyncio.wait_for(start(llm, logprobs=2), 10)

    assert await start(llm, "plain", max_tokens=3) == LONG[:3]
    await fake.kill()
