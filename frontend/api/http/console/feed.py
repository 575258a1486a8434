"""Feed: sends a snapshot to the console page each second, and at once when a service connects or disconnects.

It runs only while a page is open. All open pages share one query of the services.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.http.console.load import load_of
from tetrad.frontend.api.http.console.topology import topology_of
from tetrad.frontend.api.http.schemas.objects import event
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.services.errors import PermissionDenied, Unauthenticated

_INTERVAL_S = 1.0


class Feed:
    """Sends the snapshots of one frontend.

    Args:
        models: the models of the frontend.
        guard: checks the keys. Callers with any valid key see state and load of the services; only operators see recent
            requests and their durations.
        metrics_prefix: the prefix of the frontend's metrics.
        traces_url: the URL of the traces' page, to which the console page links; empty: none.
    """

    def __init__(self, models: ModelDirectory, guard: Guard, metrics_prefix: str, traces_url: str = "") -> None:
        self._models = models
        self._guard = guard
        self._prefix = metrics_prefix
        self._traces_url = traces_url
        self._started = time.time()
        self._latest: dict[str, Any] = {}
        self._taken_at = -math.inf
        self._num_changes = 0  # number of service changes before the latest snapshot
        self._taking = asyncio.Lock()  # guards the three above: all watchers share one snapshot

    async def follow(self, keys: Sequence[str], origin: str | None) -> AsyncIterator[bytes]:
        """Yield an event each second, and one at each change of a service, until this frontend is about to stop.

        Args:
            keys: the keys of the watcher; they are checked for each event, because keys may be revoked.
            origin: the origin of the watching page, if it is of another server; None: any other case.

        Raises:
            Unauthenticated: no key is valid, or all have been revoked.
        """
        readiness = self._models.readiness
        number = 0
        while True:
            self._guard.check_user(keys)
            is_last, num_changes = readiness.leaving.is_set(), readiness.num_changes
            snapshot = await self._shared_snapshot()
            refusal = self._refusal(keys, origin)
            requests = [] if refusal else self._models.recent.after(number)
            number = requests[-1].number if requests else number
            yield event(snapshot | {"requests_refused": refusal, "requests": [asdict(request) for request in requests]})
            if is_last:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL_S):
                    await readiness.wait_changed(num_changes)

    async def _shared_snapshot(self) -> dict[str, Any]:
        """Return the latest snapshot: one is made each second and one at each change, for any number of open pages."""
        async with self._taking:
            now, num_changes = time.monotonic(), self._models.readiness.num_changes
            # A little less than an interval: a single watcher gets a new snapshot each time.
            if num_changes != self._num_changes or now - self._taken_at >= 0.9 * _INTERVAL_S:
                self._latest = await self._snapshot()
                self._taken_at, self._num_changes = now, num_changes
            return self._latest

    async def _snapshot(self) -> dict[str, Any]:
        asked = tuple(self._models)
        loads = dict(zip(asked, await asyncio.gather(*(llm.engine_admin.loads_known() for llm in asked)), strict=True))
        return {
            "time": time.time(),
            "model": ", ".join(llm.model_names.names[0] for llm in self._models if llm.started),
            "traces_url": self._traces_url,
            "topology": topology_of(self._models, loads, self._started),
            "load": load_of(self._models.metrics, self._prefix, [engine for known in loads.values() for engine in known]),
        }

    def _refusal(self, keys: Sequence[str], origin: str | None) -> str:
        """Return why these keys do not permit to see other callers' requests; empty: they permit it."""
        try:
            self._guard.check_operator(keys, origin=origin)
        except (PermissionDenied, Unauthenticated) as error:
            return error.message
        return ""
