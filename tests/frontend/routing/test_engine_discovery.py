"""Engine cores behind names: they join, leave and drain while requests run, and no request is lost."""

import asyncio

import pytest

from tests.frontend.fakes import FakeEngine
from tests.frontend.routing.found_services import LONG, TIMEOUT_S, start, until
from tetrad.frontend.engine.client import EngineClient
from tetrad.frontend.engine.client_sequence import active_sequences
from tetrad.frontend.llm import intake
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.routing import pool as engine_pool
from tetrad.services.errors import FailedPrecondition, InvalidRequest, PoisonousRequest, PromptTooLong, Unavailable


@pytest.fixture
async def pair(start_fake, names):
    """Two engine cores that the name stands for."""
    engines = [await start_fake(FakeEngine, number) for number in range(2)]
    names.addresses["engines.test"] = [each.address for each in engines]
    return engines


@pytest.fixture
async def llm(pair, connect, port):
    settings = {"engine_targets": (f"dns:///engines.test:{port}",), "dns_refresh_interval_s": 0.02}
    llm = await connect(**settings, engine_admin_targets=(f"dns:///engines.test:{port}",))
    await until(lambda: num_connected(llm) == 2)
    return llm


def num_connected(llm):
    return sum(engine.connected for engine in llm.backends.engines.engines)


def num_known(llm):
    return len(llm.backends.engines)


async def ask(llm, count, **fields):
    """Send requests at the same time; return their texts."""
    return await asyncio.wait_for(asyncio.gather(*(start(llm, f"r{i}", **fields) for i in range(count))), TIMEOUT_S)


async def test_each_address_of_a_name_is_an_engine_of_its_own(llm, pair):
    await ask(llm, 6)

    assert [len(engine.requests) for engine in pair] == [3, 3]


async def test_an_engine_that_joins_later_gets_its_part(llm, pair, start_fake, names):
    third = await start_fake(FakeEngine, 2)
    names.addresses["engines.test"].append(third.address)
    await until(lambda: num_connected(llm) == 3)

    await ask(llm, 6)

    assert [len(engine.requests) for engine in (*pair, third)] == [2, 2, 2]


async def test_an_engine_with_a_shorter_context_shortens_every_requests(llm, pair, start_fake, names):
    """A request may go to any engine, so that one's context counts from when it joins until it leaves."""
    third = await start_fake(FakeEngine, 2, max_model_len=40)
    names.addresses["engines.test"].append(third.address)
    await until(lambda: num_connected(llm) == 3)

    with pytest.raises(PromptTooLong, match="maximum context length is 40 tokens"):
        await anext(aiter(llm.generate([104] * 50, SamplingParams(max_tokens=1), "long")))
    assert llm.max_model_len == 40

    names.addresses["engines.test"].remove(third.address)
    await third.kill()
    await until(lambda: num_known(llm) == 2)
    assert llm.max_model_len == 512


async def test_an_engine_of_another_contract_is_tried_again(llm, pair, start_fake, names, monkeypatch):
    """As one that a rolling upgrade has not come to yet."""
    monkeypatch.setattr(engine_pool, "_UNUSABLE_S", 0.05)
    third = await start_fake(FakeEngine, 2)
    third.refusal = FailedPrecondition("unknown schema revision 99")
    names.addresses["engines.test"] = [each.address for each in (*pair, third)]
    await until(lambda: llm.backends.engines._timers)

    third.refusal = None

    await until(lambda: num_connected(llm) == 3)


async def test_an_engine_that_vanishes_when_it_is_found_unusable_is_not_tried_again(llm, pair, start_fake, names, monkeypatch):
    """Its connection is closed: each attempt would fail at once, for ever."""
    pool, wait_ready, reported = llm.backends.engines, EngineClient.wait_ready, asyncio.Event()

    async def vanish_before_the_report(engine):
        try:
            return await wait_ready(engine)
        except FailedPrecondition:
            names.addresses["engines.test"].remove(third.address)
            await until(lambda: num_known(llm) == 2)
            reported.set()
            raise

    monkeypatch.setattr(EngineClient, "wait_ready", vanish_before_the_report)
    third = await start_fake(FakeEngine, 2)
    third.refusal = FailedPrecondition("unknown schema revision 99")
    names.addresses["engines.test"] = [each.address for each in (*pair, third)]
    await asyncio.wait_for(reported.wait(), TIMEOUT_S)
    await until(lambda: not pool._starting)

    assert not pool._timers


async def test_an_engine_that_is_lost_and_vanished_is_let_go_and_others_go_on_at_once(llm, pair, names):
    llm.backends.engines._take_over_after_s = 1000
    for engine in pair:
        engine.pause()
    tasks = [start(llm, f"r{i}") for i in range(4)]
    for engine in pair:
        await engine.until(lambda engine=engine: len(engine.running) == 2)
    await pair[0].take(10)

    names.addresses["engines.test"] = [pair[1].address]
    await pair[0].kill()
    await pair[1].allow(None)
    texts = await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT_S)

    assert texts == [LONG[:60]] * 4
    await until(lambda: num_known(llm) == 1)
    assert all(request.resumed for request in pair[1].requests[2:])


async def test_an_engine_that_vanished_but_is_there_ends_what_it_has_and_gets_nothing_new(llm, pair, names):
    pair[0].pause()
    pinned = start(llm, "has", rank=0)
    await pair[0].until(lambda: pair[0].running)

    names.addresses["engines.test"] = [pair[1].address]
    await until(lambda: any(member.is_gone for member in llm.backends.engines._members))
    await ask(llm, 4)
    known_meanwhile = num_known(llm)
    await pair[0].allow(None)

    assert await pinned == LONG[:60]
    assert (len(pair[0].requests), len(pair[1].requests), known_meanwhile) == (1, 4, 2)
    await until(lambda: num_known(llm) == 1)


async def test_an_engine_that_is_let_go_while_a_request_is_prepared_for_it_does_not_get_it(llm, pair, names, monkeypatch):
    async def slowly(prepared, engine):
        made = await active_sequences(prepared, engine)
        names.addresses["engines.test"] = [each.address for each in pair if each.address not in engine.target]
        await until(lambda: num_known(llm) == 1)
        return made

    monkeypatch.setattr(intake, "active_sequences", slowly)

    assert await ask(llm, 1) == [LONG[:60]]


async def test_an_engine_whose_name_comes_back_is_used_again(llm, pair, names):
    names.addresses["engines.test"] = [pair[1].address]
    await until(lambda: num_known(llm) == 1)

    names.addresses["engines.test"] = [each.address for each in pair]
    await until(lambda: num_connected(llm) == 2)
    await ask(llm, 6)

    assert [len(engine.requests) for engine in pair] == [3, 3]


async def test_a_resolver_that_fails_changes_nothing(llm, pair, names):
    names.addresses["engines.test"] = []
    await asyncio.sleep(0)
    llm.backends.engines.discovery.look_again()

    await ask(llm, 6)

    assert [len(engine.requests) for engine in pair] == [3, 3]


async def test_a_draining_engine_hands_back_and_others_go_on_at_once(llm, pair):
    llm.backends.engines._take_over_after_s = 1000
    for engine in pair:
        engine.pause()
    tasks = [start(llm, f"r{i}") for i in range(4)]
    for engine in pair:
        await engine.until(lambda engine=engine: len(engine.running) == 2)
    await pair[0].take(10)

    await pair[0].tell("ENGINE_NOTICE_KIND_DRAINING")
    await until(lambda: llm.backends.engines.engines[0].is_draining)
    new = [start(llm, f"n{i}") for i in range(2)]
    await pair[1].until(lambda: len(pair[1].running) == 4)
    await pair[0].kill()
    await pair[1].allow(None)

    assert await asyncio.wait_for(asyncio.gather(*tasks, *new), TIMEOUT_S) == [LONG[:60]] * 6
    assert len(pair[0].requests) == 2


async def test_a_request_that_ends_every_engine_it_goes_to_is_found_out(llm, pair, start_fake, names):
    """Each of them comes back elsewhere, as a container may; its fellow sufferer is acquitted."""
    llm.backends.engines._take_over_after_s = 0.01
    deaths, engines = [], list(pair)

    def mortal(engine):
        engine.step_delay_s = 0.02
        engine.reject = lambda request: deadly(engine, request)

    def deadly(engine, request):
        if request.external_req_id == "poison" and engine in engines:
            engine.pause()
            engines.remove(engine)
            deaths.append(asyncio.create_task(replace(engine)))

    async def replace(engine):
        await engine.kill()
        engines.append(await start_fake(FakeEngine, 2 + len(deaths)))
        engines[-1]._epoch += len(deaths)
        mortal(engines[-1])
        names.addresses["engines.test"] = [each.address for each in engines]
        llm.backends.engines.discovery.look_again()

    for engine in pair:
        mortal(engine)
    innocent, poison = start(llm, "innocent"), start(llm, "poison")

    with pytest.raises(PoisonousRequest, match="5 engine cores in a row died"):
        await asyncio.wait_for(poison, TIMEOUT_S)

    assert await asyncio.wait_for(innocent, TIMEOUT_S) == LONG[:60]
    assert len(deaths) == 5


async def test_metrics_tell_the_engines_apart_and_forget_what_a_lost_one_ran(llm, pair):
    for engine in pair:
        engine.pause()
    tasks = [start(llm, f"r{i}") for i in range(4)]
    for engine in pair:
        await engine.until(lambda engine=engine: len(engine.running) == 2)
        await engine.take(1)
    await until(lambda: "tetrad:num_requests_running{" in metrics(llm) and running(llm) == 4)
    both = metrics(llm)

    await pair[0].kill()
    await until(lambda: running(llm) == 2)
    await pair[1].allow(None)
    await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT_S)

    infos = [line for line in both.splitlines() if line.startswith("tetrad:cache_config_info{")]
    assert len(infos) == len({line.rpartition(" ")[0] for line in infos}) == 2
    assert all('cache_dtype="int8"' in line for line in infos)


def metrics(llm):
    return llm.metrics.render().decode()


def running(llm):
    [line] = [line for line in metrics(llm).splitlines() if line.startswith("tetrad:num_requests_running{")]
    return float(line.rpartition(" ")[2])


async def test_a_frontend_starts_before_there_is_any_engine(connect, start_fake, names, port):
    names.addresses["engines.test"] = []
    connecting = asyncio.create_task(
        connect(engine_targets=(f"dns:///engines.test:{port}",), dns_refresh_interval_s=0.02, recovery_timeout_s=5.0)
    )
    engine = await start_fake(FakeEngine, 0)

    names.addresses["engines.test"] = [engine.address]
    llm = await asyncio.wait_for(connecting, TIMEOUT_S)

    assert await ask(llm, 1) == [LONG[:60]]


async def test_an_engine_that_has_not_said_its_rank_changes_nobody_s(connect, start_fake, names, port):
    """As a Pod that is just started: its address sorts before the others, it has no answer yet."""
    engines = [await start_fake(FakeEngine, number) for number in (1, 2)]
    for rank, engine in enumerate(engines):
        engine.engine_index = rank
    names.addresses["engines.test"] = [each.address for each in engines]
    llm = await connect(engine_targets=(f"dns:///engines.test:{port}",), dns_refresh_interval_s=0.02)
    await until(lambda: num_connected(llm) == 2)

    names.addresses["engines.test"].append("127.0.0.2")
    await until(lambda: num_known(llm) == 3)
    for rank in (0, 1, 1):
        await start(llm, "r", rank=rank)
    with pytest.raises(Unavailable, match="data_parallel_rank 2 is not there now"):
        await start(llm, "r", rank=2)
    third = await start_fake(FakeEngine, 0, engine_index=2)
    await until(lambda: num_connected(llm) == 3)
    await start(llm, "r", rank=2)

    assert [len(engine.requests) for engine in (*engines, third)] == [1, 2, 1]


async def test_a_name_that_never_stands_for_anything_is_said(connect, names, port):
    names.addresses["engines.test"] = []

    with pytest.raises(Unavailable, match=r"No engine core was found within 0.3 s: dns:///engines.test:\d+ has no addresses"):
        await connect(engine_targets=(f"dns:///engines.test:{port}",), ready_timeout_s=0.3)


async def test_ranks_are_the_engines_own_where_they_have_different_ones(connect, start_fake, names, port):
    engines = [await start_fake(FakeEngine, number) for number in range(3)]
    for engine, rank in zip(engines, (2, 0, 1), strict=True):
        engine.engine_index = rank
    names.addresses["engines.test"] = [each.address for each in engines]
    llm = await connect(engine_targets=(f"dns:///engines.test:{port}",), dns_refresh_interval_s=0.02)
    await until(lambda: num_connected(llm) == 3)

    for rank in (2, 2, 0):
        await start(llm, "r", rank=rank)
    names.addresses["engines.test"] = [each.address for each in engines if each.engine_index != 0]
    await until(lambda: num_known(llm) == 2)
    await start(llm, "r", rank=1)
    with pytest.raises(Unavailable, match="data_parallel_rank 0 is not there now"):
        await start(llm, "r", rank=0)
    with pytest.raises(InvalidRequest, match=r"out of range \[0, 3\)"):
        await start(llm, "r", rank=3)

    assert [len(engine.requests) for engine in engines] == [2, 1, 1]


async def test_orders_of_operators_reach_every_engine_that_there_is(llm, pair, start_fake, names):
    third = await start_fake(FakeEngine, 2)
    names.addresses["engines.test"] = [pair[0].address, third.address]
    await until(
        lambda: {engine.target for engine in llm.backends.engines.engines} == {f"ipv4:{e.target}" for e in (pair[0], third)}
    )

    await llm.engine_admin.resume()

    assert [engine.orders for engine in (*pair, third)] == [[("resume",)], [], [("resume",)]]


async def test_who_listens_to_an_engine_that_is_let_go_is_told(llm, pair, names):
    events = llm.engine_admin.kv_events()[1]
    listening = asyncio.create_task(anext(events))
    await until(lambda: pair[1].kv_starts.count(0) > 1)
    names.addresses["engines.test"] = [pair[0].address]
    await until(lambda: num_known(llm) == 1)

    await llm.engine_admin.state()

    with pytest.raises(Unavailable, match="left"):
        await asyncio.wait_for(listening, TIMEOUT_S)
