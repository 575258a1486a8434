"""What a worker's KV memory holds: every slot the tokens up to its own, so that a read of anything else is noticed."""

from tetrad.engine_core_svc.kv_cache.events import NoKvEvents


class WorkerMemory:
    """Runs plans in order, as a worker does: copies first, then all writes of a step, then its reads."""

    def __init__(self, block_size):
        self.block_size = block_size
        self.device, self.host, self.tables, self.known, self.set_aside = {}, {}, {}, {}, set()

    def run(self, plan, sampled, *, failing=()):
        """Run a plan, of which some requests fail before anything is written; return the keys of those that read nonsense.

        What these write is nonsense, too.
        """
        self._copy(plan.swaps)
        self.set_aside = (self.set_aside - set(plan.removed_keys)) | set(failing)
        work = [row for row in self._rows(plan) if row[0] not in self.set_aside]
        for key, computed, scheduled in work:
            self._write(key, computed, scheduled, nonsense=False)
        misled = {key for key, computed, scheduled in work if not self._reads_well(key, computed + scheduled)}
        for key, computed, scheduled in work:
            if key in misled:
                self._write(key, computed, scheduled, nonsense=True)
        for key, token in sampled:
            self.known[key].append(token)
        return misled

    def _copy(self, swaps):
        outgoing = {host: dict(self.device.get(block, {})) for block, host in swaps.out}
        assert len(outgoing) == len(swaps.out), "two blocks go to one place"
        self.host.update(outgoing)
        for host, block in swaps.back:
            self.device[block] = dict(self.host[host])

    def _rows(self, plan):
        for new in plan.new_requests:
            self.known[new.key], self.tables[new.key] = list(new.token_ids), list(new.block_ids)
            yield new.key, new.num_computed_tokens, new.num_scheduled_tokens
        columns, ids = plan.cached_requests, iter(plan.cached_requests.new_block_ids)
        for key, scheduled, computed, count in zip(
            columns.keys, columns.num_scheduled_tokens, columns.num_computed_tokens, columns.num_new_blocks, strict=True
        ):
            self.tables[key] += [next(ids) for _ in range(count)]
            yield key, computed, scheduled

    def _write(self, key, computed, scheduled, *, nonsense):
        for position in range(computed, computed + scheduled):
            content = None if nonsense else tuple(self.known[key][: position + 1])
            self._slot(key, position)[position % self.block_size] = content

    def _reads_well(self, key, end):
        return all(
            self._slot(key, position).get(position % self.block_size) == tuple(self.known[key][: position + 1])
            for position in range(end)
        )

    def _slot(self, key, position):
        return self.device.setdefault(self.tables[key][position // self.block_size], {})


class LostBlocks(NoKvEvents):
    """Notes what the prefix cache says that it no longer has."""

    def __init__(self):
        self.lost = []

    def removed(self, block_hash):
        self.lost.append(block_hash)
