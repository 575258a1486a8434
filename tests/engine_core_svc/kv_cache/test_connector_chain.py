"""Several connectors behind the interface of one: each hears everything, and the first that can brings and keeps."""

from types import SimpleNamespace

from tetrad.engine_core_svc.core.plan import SchedulerOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.connector import ConnectorChain, ConnectorStats, KVConnector


class Store(KVConnector):
    """Has these contents, offers so many tokens, and notes what it is told."""

    def __init__(self, *keys, offers=0, keeps=False, is_new=False, stats=None, loses=None):
        self.keys, self.offers, self.keeps, self.is_new, self.told = keys, offers, keeps, is_new, []
        self._stats, self._loses = stats, loses or {}

    def stored(self, *what):
        self.told.append(("stored", *what))

    def evicted(self, key, block):
        self.told.append(("evicted", key, block))
        return self._loses.get(key, key)

    def removed(self, key):
        self.told.append(("removed", key))

    def cleared(self):
        self.told.append(("cleared",))

    def has(self, key):
        return key in self.keys

    def hold(self, keys):
        self.told.append(("hold", keys))

    def load(self, keys, blocks):
        self.told.append(("load", keys, blocks))

    def build_connector_meta(self, plan):
        self.told.append(("plan", plan))

    @property
    def has_new_transfers(self):
        return self.is_new

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        assert isinstance(request, Request)
        return max(0, self.offers - num_computed_tokens)

    def update_state_after_alloc(self, load):
        self.told.append(("fetch", load))

    def request_finished(self, request, blocks):
        self.told.append(("finished", request, blocks))
        return self.keeps

    def stats(self):
        return self._stats


def a_request():
    return Request(1, "r", [1], 1, 9)


def test_each_hears_what_is_cached_and_planned():
    stores = [Store(), Store()]
    chain, request, plan = ConnectorChain(stores), a_request(), SchedulerOutput(step_id=1)
    chain.stored(request, 2, 5)
    chain.removed(b"a")
    chain.cleared()
    chain.build_connector_meta(plan)

    for store in stores:
        assert store.told == [("stored", request, 2, 5), ("removed", b"a"), ("cleared",), ("plan", plan)]


def test_the_first_that_keeps_a_content_is_the_last_that_it_is_offered_to():
    first, second, third = Store(), Store(loses={b"a": None, b"b": b"c"}), Store()
    chain = ConnectorChain([first, second, third])

    assert [chain.evicted(key, block) for key, block in ((b"a", 7), (b"b", 8), (b"d", 9))] == [None, b"c", b"d"]
    assert first.told == [("evicted", b"a", 7), ("evicted", b"b", 8), ("evicted", b"d", 9)]
    assert third.told == [("evicted", b"d", 9)]


def test_each_content_is_held_and_brought_by_the_first_that_has_it():
    first, second = Store(b"a", b"b"), Store(b"b", b"c")
    chain = ConnectorChain([first, second])
    chain.hold([b"a", b"b", b"c"])
    chain.load([b"c", b"b", b"a"], [3, 2, 1])

    assert [chain.has(key) for key in (b"a", b"c", b"d")] == [True, True, False]
    assert first.told == [("hold", [b"a", b"b"]), ("load", [b"b", b"a"], [2, 1])]
    assert second.told == [("hold", [b"c"]), ("load", [b"c"], [3])]


def test_the_first_that_offers_tokens_counts():
    chain, request = ConnectorChain([Store(), Store(offers=8), Store(offers=16)]), a_request()

    assert [chain.get_num_new_matched_tokens(request, number) for number in (0, 2, 8, 16)] == [8, 6, 8, 0]


def test_the_first_that_offers_tokens_behind_the_computed_ones_fetches_them():
    stores = [Store(offers=4), Store(offers=8), Store(offers=16)]
    load = SimpleNamespace(request=a_request(), num_computed_tokens=4)

    ConnectorChain(stores).update_state_after_alloc(load)

    assert [store.told for store in stores] == [[], [("fetch", load)], []]


def test_blocks_are_kept_by_the_first_that_wants_them():
    stores, request = [Store(), Store(keeps=True), Store(keeps=True)], a_request()

    assert ConnectorChain(stores).request_finished(request, [4, 5])
    assert [bool(store.told) for store in stores] == [True, True, False]
    assert stores[1].told == [("finished", request, [4, 5])]
    assert not ConnectorChain(stores[:1]).request_finished(request, [])


def test_one_new_transfer_is_enough():
    assert ConnectorChain([Store(), Store(is_new=True)]).has_new_transfers
    assert not ConnectorChain([Store(), Store()]).has_new_transfers


def test_statistics_are_added_up():
    stores = [Store(stats=ConnectorStats(1, 2, 3, 4)), Store(stats=ConnectorStats(10, 20, 30, 40))]

    assert ConnectorChain(stores).stats() == ConnectorStats(11, 22, 33, 44)


def test_a_connector_that_overrides_nothing_holds_nothing():
    plain, request = KVConnector(), a_request()
    for tell in (plain.cleared, lambda: plain.stored(request, 0, 1), lambda: plain.removed(b"a"), lambda: plain.hold([])):
        tell()

    assert (plain.evicted(b"a", 1), plain.has(b"a"), plain.has_new_transfers) == (b"a", False, False)
    assert (plain.get_num_new_matched_tokens(request, 0), plain.request_finished(request, [])) == (0, False)
    assert plain.stats() == ConnectorStats(0, 0, 0, 0)
