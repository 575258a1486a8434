"""Tokenizers behind names: calls and streams move when one leaves, and none is lost."""

import asyncio

from tests.frontend.fakes import FakeTokenizer
from tests.frontend.routing.found_services import LONG, TIMEOUT_S, start, until


async def test_a_call_to_a_tokenizer_that_is_let_go_is_answered_by_another(connect, start_fake, names, port):
    fakes = [await start_fake(FakeTokenizer, number) for number in range(2)]
    names.addresses["tokenizers.test"] = [each.address for each in fakes]
    settings = {"dns_refresh_interval_s": 0.02, "tokenizer_stall_s": 60.0, "recovery_timeout_s": 60.0}
    llm = await connect(tokenizer_targets=(f"dns:///tokenizers.test:{port}",), **settings)
    await until(lambda: sum(replica.usable for replica in llm.backends.tokenizers) == 2)
    fakes[0].hung.clear()
    text = "a" * 5_000  # too long to go together: each goes to another one
    calls = [asyncio.create_task(llm.texts.tokenize(text)) for _ in range(2)]
    await until(lambda: fakes[0].num_calls == 1)
    names.addresses["tokenizers.test"] = [fakes[1].address]

    # It takes no new connections and ends what it has: clients leave it, their calls run on.
    stopping = asyncio.create_task(fakes[0]._server.stop(TIMEOUT_S))

    assert await asyncio.wait_for(asyncio.gather(*calls), TIMEOUT_S / 2) == [[97] * 5_000] * 2
    fakes[0].hung.set()
    await stopping


async def test_calls_go_to_the_tokenizers_of_a_name_in_turn(connect, start_fake, names, port):
    fakes = [await start_fake(FakeTokenizer, number) for number in range(2)]
    names.addresses["tokenizers.test"] = [fakes[0].address]
    llm = await connect(tokenizer_targets=(f"dns:///tokenizers.test:{port}",), dns_refresh_interval_s=0.02)

    names.addresses["tokenizers.test"] = [each.address for each in fakes]
    await until(lambda: sum(replica.usable for replica in llm.backends.tokenizers) == 2)
    for _ in range(6):
        await llm.texts.tokenize("a")
    shares = [fake.num_calls for fake in fakes]
    names.addresses["tokenizers.test"] = [fakes[1].address]
    await fakes[0].kill()
    await until(lambda: len(llm.backends.tokenizers) == 1)

    assert shares == [3, 3]
    assert await asyncio.wait_for(start(llm, "after"), TIMEOUT_S) == LONG[:60]
