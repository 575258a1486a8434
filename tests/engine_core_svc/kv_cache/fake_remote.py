"""RemoteStore: a connector to a machine that has computed every prompt, of which it offers some blocks at random."""

from random import Random

from tetrad.engine_core_svc.kv_cache.connector import KVConnector


class RemoteStore(KVConnector):
    """Transfers are under way from the plan that begins them until the test ends them."""

    def __init__(self, seed, block_size, *, most_blocks=5, keeps=0.0):
        self.seed, self.block_size, self.most_blocks = seed, block_size, most_blocks
        self._keeps, self._random = keeps, Random(seed)
        self._new, self.under_way, self.kept = [], {}, {}

    @property
    def has_new_transfers(self):
        return bool(self._new)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        random = Random(f"{self.seed} {request.key} {num_computed_tokens}")
        return random.randint(0, self.most_blocks) * self.block_size + random.randrange(self.block_size)

    def update_state_after_alloc(self, load):
        self._new.append(load)

    def build_connector_meta(self, plan):
        self.under_way |= {load.request.key: load for load in self._new}
        self._new = []

    def request_finished(self, request, blocks):
        if not blocks or self._random.random() >= self._keeps:
            return False
        self.kept[request.key] = (
            list(request.token_ids[: min(request.num_computed_tokens, request.num_tokens - 1)]),
            list(blocks),
        )
        return True

    def worker_lost(self):
        self._new, self.under_way, self.kept = [], {}, {}
