"""SharedResources: the limits, peers on the same port, tracer and recent requests that all models of a frontend share.

Made once for a frontend. Knows no models.
"""

import asyncio
from collections.abc import Callable

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.model_tasks import ModelTasks
from tetrad.frontend.media.loader import MediaLoader
from tetrad.frontend.net.peers import Peers
from tetrad.frontend.observability.merged_metrics import merged
from tetrad.frontend.observability.recent_requests import RecentRequests
from tetrad.frontend.request.admission import Admission
from tetrad.services.observability.tracer import open_tracer

_NUM_RECENT_REQUESTS = 100


class SharedResources:
    """The shared parts of one frontend.

    Args:
        settings: the frontend's settings.

    Attributes:
        peers: the other frontends on the same port; None: there are none.
        admission: limits the requests of all models together.
        tracer: makes the frontend's spans.
        recent: the last requests of all models.
        tasks: the tasks of all models.
        media: reads the images of all requests.
    """

    def __init__(self, settings: FrontendSettings) -> None:
        self.peers = None if settings.peers_dir is None else Peers(settings.peers_dir)
        self.admission = Admission(
            settings.max_num_requests,
            settings.max_num_queued_tokens,
            frontends=None if self.peers is None else self.peers.slots,
        )
        self.tracer = open_tracer("frontend", settings.otlp_endpoint)
        self.tasks = ModelTasks()
        self.media = MediaLoader(settings)
        self.recent = RecentRequests(_NUM_RECENT_REQUESTS if settings.console else 0)

    async def start(self, render: Callable[[], bytes]) -> None:
        """Serve this frontend's metrics, which `render` returns, to the other frontends."""
        if self.peers is not None:
            await self.peers.serve(render)

    async def merged_metrics(self, own: bytes) -> bytes:
        """Return `own`, this frontend's metrics, merged with the metrics of the other frontends."""
        if self.peers is None:
            return own
        return merged(await self.peers.pages() | {self.peers.slots.number: own})

    async def close(self) -> None:
        """Send the last spans, disconnect from the other frontends, and end the threads of images."""
        self.media.close()
        try:
            await asyncio.to_thread(self.tracer.close)
        except RuntimeError:  # the interpreter is shutting down: thread pools accept no calls
            self.tracer.close()
        if self.peers is not None:
            await self.peers.close()
