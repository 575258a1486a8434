"""A model of a worker's KV memory: slots and states hold the tokens up to their own, so that any wrong read is detected."""

from tetrad.engine_core_svc.core.kv_groups import ONE_GROUP, KvGroup
from tetrad.engine_core_svc.kv_cache.block_pool import NULL_BLOCK
from tetrad.engine_core_svc.kv_cache.connector import KVConnector

STATE = "state"
"""In the place of a window: the group of layers with states."""


def group_of(window):
    """Return the group of a window; None: all keys; STATE: layers with states."""
    return KvGroup(is_state=True) if window == STATE else KvGroup(window)


class WorkerMemory:
    """Runs plans in order, as a worker does: copies first, then all writes of keys, reads and writes of states, reads of keys.

    Groups share memory, so a state overwrites keys, and keys a state.
    """

    def __init__(self, block_size, groups=ONE_GROUP):
        self.block_size, self.groups = block_size, groups
        self.device, self.host, self.tables, self.known, self.set_aside = {}, {}, {}, {}, set()
        self.draft_tokens = {}

    def run(self, plan, sampled, *, failing=()):
        """Run a plan, of which some requests fail before anything is written; return the keys of those that read nonsense.

        What these write is nonsense, too.
        """
        self._copy(plan.swaps)
        self.draft_tokens = plan.draft_tokens
        self.set_aside = (self.set_aside - set(plan.removed_keys)) | set(failing)
        work = [row for row in self._rows(plan) if row[0] not in self.set_aside]
        for key, computed, scheduled in work:
            self._write(key, computed, scheduled, nonsense=False)
        misled = {key for key, computed, _ in work if not self._reads_states_well(key, computed)}
        for key, computed, scheduled in work:
            self._write_states(key, computed, scheduled, nonsense=key in misled)
        misled |= {key for key, computed, scheduled in work if not self._reads_well(key, computed, computed + scheduled)}
        for key, computed, scheduled in work:
            if key in misled:
                self._write(key, computed, scheduled, nonsense=True)
                self._write_states(key, computed, scheduled, nonsense=True)
        ends = {key: computed + scheduled for key, computed, scheduled in work if key not in misled}
        for key, row in sampled.items():
            self.known[key] += row
            if key in ends and (drafts := self.draft_tokens.get(key)):
                self._settle_states(key, ends[key] - len(drafts), num_accepted=len(row) - 1)
        return misled

    def _copy(self, swaps):
        outgoing = {host: dict(self.device.get(block, {})) for block, host in swaps.out}
        assert len(outgoing) == len(swaps.out), "two blocks go to one place"
        self.host.update(outgoing)
        for host, block in swaps.back:
            self.device[block] = dict(self.host[host])

    def _rows(self, plan):
        for new in plan.new_requests:
            self.known[new.key], self.tables[new.key] = list(new.token_ids), [list(table) for table in new.block_tables]
            yield new.key, new.num_computed_tokens, new.num_scheduled_tokens
        columns = plan.cached_requests
        for key, scheduled, computed, new_blocks in zip(
            columns.keys, columns.num_scheduled_tokens, columns.num_computed_tokens, columns.new_blocks, strict=True
        ):
            for table, blocks in zip(self.tables[key], new_blocks, strict=True):
                table.extend(blocks)
            yield key, computed, scheduled

    def _write(self, key, computed, scheduled, *, nonsense):
        for number, group in enumerate(self.groups):
            for position in range(computed, computed + scheduled) if not group.is_state else ():
                content = None if nonsense else self._content(key, number, position)
                block = self._block(key, number, position)
                block.pop(STATE, None)
                block[position % self.block_size] = content

    def _reads_states_well(self, key, computed):
        return not computed or all(
            self._block(key, number, computed - 1).get(STATE) == self._content(key, number, computed - 1)
            for number, group in enumerate(self.groups)
            if group.is_state
        )

    def _write_states(self, key, computed, scheduled, *, nonsense):
        """Write the state behind the last known token, and those at the ends of blocks on the way that the table has."""
        last = computed + scheduled - len(self.draft_tokens.get(key, ())) - 1
        for number, group in enumerate(self.groups):
            for position in range(computed, last + 1) if group.is_state else ():
                is_kept = (position + 1) % self.block_size == 0 and self.tables[key][number][position // self.block_size]
                if position == last or is_kept:
                    block = self._block(key, number, position)
                    block.clear()
                    block[STATE] = None if nonsense else self._content(key, number, position)

    def _settle_states(self, key, end, *, num_accepted):
        """Replace the state behind the last known token, before `end`, by that behind the accepted drafts in its block."""
        last = end + num_accepted - 1
        for number in (number for number, group in enumerate(self.groups) if group.is_state):
            assert last // self.block_size == (end - 1) // self.block_size, "drafts go beyond the block of the state"
            self._block(key, number, last)[STATE] = self._content(key, number, last)

    def _reads_well(self, key, computed, end):
        return all(
            self._block(key, number, position).get(position % self.block_size) == self._content(key, number, position)
            for number, group in enumerate(self.groups)
            if not group.is_state
            for position in range(max(0, computed - group.sliding_window + 1) if group.sliding_window else 0, end)
        )

    def _content(self, key, group, position):
        """Return what the step computes, its drafts included."""
        return group, *(*self.known[key], *self.draft_tokens.get(key, ()))[: position + 1]

    def _block(self, key, group, position):
        block = self.tables[key][group][position // self.block_size]
        assert block != NULL_BLOCK, "the null block holds no tokens"
        return self.device.setdefault(block, {})


class LostBlocks(KVConnector):
    """Notes what the prefix cache says that it no longer has."""

    def __init__(self):
        self.lost = []

    def removed(self, key):
        self.lost.append(key)
