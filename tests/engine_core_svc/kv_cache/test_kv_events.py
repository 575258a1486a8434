"""Subscribers receive all changes of the prefix cache in order, also late and slow ones."""

import asyncio
from random import Random

import pytest

from tests.engine_core_svc.media.encoder_model import image
from tests.engine_core_svc.service_fakes import WAIT_S, Stack
from tetrad.engine_core_svc.api.kv_events_wire import encode_kv_events
from tetrad.engine_core_svc.core.adapter import Adapter, LoraRef
from tetrad.engine_core_svc.kv_cache.event_log import BlocksCleared, BlocksRemoved, BlocksStored, KvEventBatch, KvEventLog
from tetrad.engine_core_svc.kv_cache.prefix_hash import ROOT_HASH, hash_block
from tetrad.services.rpc.columns import unpack_u32
from tetrad.v1 import engine_core_pb2 as pb

EPOCH = 1000
BLOCK_SIZE = 4


class Mirror:
    """A listener: the cached blocks as its events describe them, by the engine's names, and all events."""

    def __init__(self, log, start=0):
        self.cached, self.batches = set(), []
        self._source = log.follow(start)
        self._next = None

    async def catch_up(self):
        """Read what there is."""
        await asyncio.sleep(0)  # the step ends with this tick
        while True:
            self._next = self._next or asyncio.ensure_future(anext(self._source))
            await asyncio.wait({self._next}, timeout=0)
            if not self._next.done():
                return
            self._take(self._next.result())
            self._next = None

    def _take(self, batch):
        self.batches.append(batch)
        for event in self.batches[-1].events:
            if isinstance(event, BlocksStored):
                self.cached |= set(event.block_hashes)
            elif isinstance(event, BlocksRemoved):
                assert self.cached >= set(event.block_hashes), "what is removed was there"
                self.cached -= set(event.block_hashes)
            else:
                self.cached.clear()

    @property
    def events(self):
        return [event for batch in self.batches for event in batch.events]


def cached_in(bench):
    """Return the names of what a request could find now."""
    return set(bench.scheduler.kv_cache.pool._blocks_of)


@pytest.fixture
def log():
    return KvEventLog(BLOCK_SIZE, epoch=EPOCH)


@pytest.fixture
def make_listened(make_bench, log):
    return lambda num_blocks=100, log=log: make_bench(num_blocks=num_blocks, block_size=BLOCK_SIZE, connector=log)


async def listen(log, start=0):
    """Return a listener that knows all there is."""
    mirror = Mirror(log, start)
    await mirror.catch_up()
    return mirror


async def test_the_first_message_forgets_all_that_was_known(log):
    mirror = await listen(log)

    assert [type(event) for event in mirror.events] == [BlocksCleared]
    assert mirror.batches[0].is_snapshot


async def test_a_step_is_one_batch(make_listened, log):
    bench, mirror = make_listened(), await listen(log)

    for _ in range(3):
        bench.add(8, max_tokens=1)
    bench.step()
    await mirror.catch_up()

    assert mirror.batches[-1].sequence_number == EPOCH + 1
    assert [len(event.block_hashes) for event in mirror.batches[-1].events] == [2, 2, 2]


async def test_the_first_listener_hears_of_all_that_is_cached_however_late_it_comes(make_listened, log):
    bench = make_listened(num_blocks=5)
    for first in (0, 100):  # the second pushes out what it needs
        bench.add(range(first, first + 8), max_tokens=1)
        bench.run()
    batches_before = list(log._batches)

    mirror = await listen(log)

    assert mirror.cached == cached_in(bench) != set()
    assert batches_before == []


async def test_a_snapshot_has_each_block_with_its_tokens_and_its_parent(make_listened, log):
    bench = make_listened()
    request = bench.add([3] * 4 + [5] * 4 + [7] * 5, max_tokens=1, cache_salt="tenant")
    bench.run()
    first, *others = request.block_hashes
    whole = [event for event in (await listen(log)).events if isinstance(event, BlocksStored)]
    log.removed(first)

    rest = [event for event in (await listen(log)).events if isinstance(event, BlocksStored)]

    assert [(event.parent, event.block_hashes, event.cache_salt) for event in whole] == [(None, [first, *others], "tenant")]
    assert [(event.parent, event.block_hashes, event.cache_salt) for event in rest] == [(first, others, "tenant")]
    assert [unpack_u32(event.token_ids) for event in rest] == [[5] * 4 + [7] * 4]


async def test_blocks_that_follow_in_a_later_step_name_the_adapter_and_the_salt_too(make_listened, log):
    """A listener that hashes tokens, adapter and salt of each run need not know the run before."""
    bench, mirror = make_listened(), await listen(log)
    adapter = Adapter(LoraRef("sql", 1, "/sql"), key=1, digest=b"sql")
    bench.add([3] * 4 + [5] * 3, max_tokens=3, adapter=adapter, cache_salt="tenant")
    bench.run()
    await mirror.catch_up()

    for events in (mirror.events, (await listen(log)).events):
        runs = [event for event in events if isinstance(event, BlocksStored)]
        assert {(event.lora_name, event.cache_salt) for event in runs} == {("sql", "tenant")}
    assert [event.parent is None for event in mirror.events if isinstance(event, BlocksStored)] == [True, False]


async def test_an_adapters_run_names_the_adapter(make_listened, log):
    """At once and in a snapshot; equal prompts of the base model and of two adapters are three runs."""
    bench, mirror = make_listened(), await listen(log)
    tokens = [3] * 4 + [5] * 4
    for name in ("", "sql", "legal"):
        adapter = Adapter(LoraRef(name, 1, f"/{name}"), key=1, digest=name.encode()) if name else None
        bench.add([*tokens, 7], max_tokens=1, adapter=adapter)
        bench.run()
    await mirror.catch_up()

    for events in (mirror.events, (await listen(log)).events):
        runs = [event for event in events if isinstance(event, BlocksStored)]
        assert [(event.parent, event.lora_name, len(event.block_hashes)) for event in runs] == [
            (None, "", 2),
            (None, "sql", 2),
            (None, "legal", 2),
        ]
        assert len({name for event in runs for name in event.block_hashes}) == 6
        stored = [encode_kv_events(KvEventBatch(1, [event]), BLOCK_SIZE).events[0].stored for event in runs]
        assert [message.lora_name for message in stored] == ["", "sql", "legal"]


async def test_blocks_with_images_name_them(make_listened, log):
    """At once and in a snapshot, in the order of the prompt; a run without images names none."""
    bench, mirror = make_listened(), await listen(log)
    bench.add(17, max_tokens=1, media=(image("a", 5, 4), image("b", 9, 2)))
    bench.add(17, max_tokens=1)
    bench.run()
    await mirror.catch_up()

    for events in (mirror.events, (await listen(log)).events):
        runs = [event for event in events if isinstance(event, BlocksStored)]
        assert [list(event.extra_keys) for event in runs] == [[b"", b"a\0", b"a\0b\0", b""], []]


async def test_what_blocks_push_out_is_told(make_listened, log):
    bench, mirror = make_listened(num_blocks=5), await listen(log)
    bench.add(8, max_tokens=1)
    bench.run()
    before = cached_in(bench)

    bench.add(16, max_tokens=1)
    bench.run()
    await mirror.catch_up()

    assert not before & mirror.cached
    assert mirror.cached == cached_in(bench)


@pytest.mark.parametrize("seed", range(3))
async def test_a_listener_knows_at_all_times_what_is_cached(make_listened, log, seed):
    """Prompts that share prefixes, in a pool so small that blocks come and go; a second listener comes in the middle."""
    random, bench, mirrors = Random(seed), make_listened(num_blocks=24), [await listen(log)]
    for turn in range(120):
        prompt = [random.randrange(2) for _ in range(random.randrange(1, 20))]
        bench.add(prompt, max_tokens=random.randrange(1, 12))
        bench.step()
        if turn == 60:
            mirrors.append(await listen(log))
        if turn % 40 == 39:
            bench.run()
            bench.scheduler.reset_prefix_cache()
        for mirror in mirrors:
            await mirror.catch_up()
            assert mirror.cached == cached_in(bench)
    assert any(isinstance(event, BlocksRemoved) for event in mirrors[0].events)
    assert sum(isinstance(event, BlocksCleared) for event in mirrors[0].events) >= 3


async def test_who_comes_back_goes_on_where_it_was(make_listened, log):
    bench, mirror = make_listened(), await listen(log)
    for _ in range(3):
        bench.add(8, max_tokens=1)
        bench.run()
        await asyncio.sleep(0)

    again = await listen(log, start=EPOCH + 2)

    assert [batch.sequence_number for batch in again.batches] == [EPOCH + 2, EPOCH + 3]
    assert not any(batch.is_snapshot for batch in again.batches)
    assert not mirror.cached


@pytest.mark.parametrize("start", [0, EPOCH + 1, EPOCH + 7, EPOCH + 50])
async def test_a_start_that_is_not_kept_begins_with_a_snapshot(make_bench, start):
    log = KvEventLog(BLOCK_SIZE, epoch=EPOCH, max_kept_blocks=4)
    bench = make_bench(block_size=BLOCK_SIZE, connector=log)
    await listen(log)
    for _ in range(5):
        bench.add(8, max_tokens=1)
        bench.run()
        await asyncio.sleep(0)

    mirror = await listen(log, start)

    assert [batch.is_snapshot for batch in mirror.batches] == [True, True]
    assert mirror.cached == cached_in(bench)


async def test_a_slow_listener_gets_a_snapshot_and_keeps_nothing_waiting(make_bench):
    log = KvEventLog(BLOCK_SIZE, epoch=EPOCH, max_kept_blocks=10)
    bench = make_bench(block_size=BLOCK_SIZE, connector=log)
    slow = await listen(log)

    for _ in range(50):  # while it reads nothing
        bench.add(8, max_tokens=1)
        bench.run()
        await asyncio.sleep(0)
        assert log._num_kept_blocks <= 10
    await slow.catch_up()

    assert slow.cached == cached_in(bench)
    assert slow.batches[-1].is_snapshot
    assert len(slow.batches) < 10, "it is not told of every step that it missed"


async def subscribe(stack, start=0):
    call = stack.admin.SubscribeKvEvents(pb.SubscribeKvEventsRequest(start_sequence_number=start))
    first = await asyncio.wait_for(call.read(), WAIT_S)
    assert first.snapshot
    return call


async def read_stored(call):
    """Return the next run of stored blocks."""
    while True:
        message = await asyncio.wait_for(call.read(), WAIT_S)
        for event in message.events:
            if event.HasField("stored"):
                return event.stored


async def test_a_listener_can_compute_the_names_itself(stack):
    client = await stack.client()
    call = await subscribe(stack)

    client.add(1, range(100, 140), max_tokens=1, cache_salt="tenant")
    stored = await read_stored(call)

    tokens, parent, names = unpack_u32(stored.token_ids), ROOT_HASH, []
    for start in range(0, len(tokens), stored.block_size):
        extra = b"cache_salt:tenant" if parent == ROOT_HASH else b""
        parent = hash_block(parent, tokens[start : start + stored.block_size], extra)
        names.append(parent)
    assert tokens == list(range(100, 132))
    assert names == list(stored.block_hashes)
    assert stored.cache_salt == "tenant"
    assert not stored.HasField("parent_block_hash")


async def test_blocks_that_follow_later_name_their_parent(stack):
    client = await stack.client()
    call = await subscribe(stack)

    client.add(1, range(100, 116), max_tokens=20)
    first, second = await read_stored(call), await read_stored(call)

    assert second.parent_block_hash == first.block_hashes[-1]
    assert unpack_u32(second.token_ids) == list(range(116, 132)), "what was generated is cached, too"


async def test_a_reset_cache_and_a_lost_worker_clear_everything(stack):
    client = await stack.client()
    call = await subscribe(stack)

    client.add(1, range(16), max_tokens=1)
    await read_stored(call)
    await client.until_finished(1)
    await stack.admin.ResetPrefixCache(pb.ResetPrefixCacheRequest())
    by_reset = await asyncio.wait_for(call.read(), WAIT_S)
    stack.worker.crashed.set()
    client.add(2, range(50, 66), max_tokens=1)
    await read_stored(call)
    by_loss = await asyncio.wait_for(call.read(), WAIT_S)

    for message in (by_reset, by_loss):
        assert [event.WhichOneof("event") for event in message.events] == ["cleared"]


async def test_numbers_of_two_engines_in_a_row_never_meet(directory):
    numbers = []
    for _ in range(2):
        async with Stack(directory) as stack:
            client = await stack.client()
            call = await subscribe(stack)
            client.add(1, range(16), max_tokens=1)
            numbers.append((await asyncio.wait_for(call.read(), WAIT_S)).sequence_number)

    assert numbers[0] < numbers[1] - 1_000_000


async def test_a_listener_that_reads_nothing_does_not_slow_the_engine_or_keep_it_from_stopping(directory):
    async with Stack(directory) as stack:
        client = await stack.client()
        await subscribe(stack)

        for handle in range(40):
            client.add(handle, range(handle, handle + 100), max_tokens=4)
        await client.until_finished(*range(40))
        stack.shutdown.set()

        await asyncio.wait_for(stack.serving, WAIT_S)
