"""Backends: the services behind one frontend, connected, watched and closed together.

Built and owned by AsyncLLM. Knows which clients there are and how they hang together; knows nothing of what is asked of them.
"""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.detokenizer_client import DetokenizerClient
from tetrad.frontend.engine_client import EngineClient
from tetrad.frontend.engine_pool import EnginePool
from tetrad.frontend.facts import TokenizerInfo
from tetrad.frontend.metrics import FrontendMetrics
from tetrad.frontend.output_processor import OutputProcessor
from tetrad.frontend.readiness import Readiness
from tetrad.frontend.recent_requests import RecentRequests
from tetrad.frontend.tokenizer_bundle_client import BundleChunk, bundle_chunks
from tetrad.frontend.tokenizer_client import TokenizerClient
from tetrad.frontend.tokenizer_replicas import Replica, TokenizerReplicas
from tetrad.services.channel import open_channel, problem_of
from tetrad.services.errors import Unavailable

_NUM_RECENT_REQUESTS = 100


class Backends:
    """Clients of the tokenizers and the engine cores, and the processor between them.

    Args:
        settings: where they are, and how long they may be away.
        metrics: for the processor, and for how many are there.
    """

    def __init__(self, settings: FrontendSettings, metrics: FrontendMetrics) -> None:
        self._metrics = metrics
        self._settings = settings
        connect = partial(open_channel, max_message_bytes=settings.max_message_bytes, tls=settings.tls)
        patience = {"recovery_timeout_s": settings.recovery_timeout_s, "stall_s": settings.tokenizer_stall_s}
        self._replicas = TokenizerReplicas(settings.tokenizer_targets, connect, self._on_change)
        self.tokenizer = TokenizerClient(self._replicas, **patience, on_answer=metrics.observe_tokenizer_call)
        self.detokenizer = DetokenizerClient(self._replicas, **patience)
        self.recent = RecentRequests(_NUM_RECENT_REQUESTS if settings.console else 0)
        self.processor = OutputProcessor(self.detokenizer, self.tokenizer, metrics, self.recent)
        self.engines = EnginePool(
            [
                EngineClient(target, connect(target), self.processor, recovery_timeout_s=settings.recovery_timeout_s)
                for target in settings.engine_targets
            ],
            on_change=self._on_change,
            on_moved=self.processor.move,
        )
        self.readiness = Readiness(self._replicas, self.engines)

    @property
    def tokenizers(self) -> list[Replica]:
        """The tokenizers, in the order of the settings."""
        return self._replicas.replicas

    async def start(self, timeout_s: float) -> TokenizerInfo:
        """Connect, and return what the tokenizer says of itself when all is there that requests need.

        Raises:
            Unavailable: it is not after `timeout_s`.
            FailedPrecondition: an engine speaks another revision of the contract.
        """
        self._replicas.start()
        self.detokenizer.start()
        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
                group.create_task(self.engines.start())
                group.create_task(self.detokenizer.wait_connected())
        except TimeoutError:
            raise self._not_ready(timeout_s) from None
        except ExceptionGroup as errors:
            # The first failure has cancelled the others, and is the whole story.
            raise errors.exceptions[0] from None
        assert self._replicas.info is not None
        return self._replicas.info

    def tokenizer_bundle(self) -> AsyncGenerator[BundleChunk, None]:
        """Return the tokenizer's files; see tokenizer_bundle_client.py."""
        return bundle_chunks(self._replicas, self._settings.recovery_timeout_s)

    async def close(self) -> None:
        """End all connections."""
        await self.engines.close()
        await self.detokenizer.close()
        await self._replicas.close()

    def _not_ready(self, timeout_s: float) -> Unavailable:
        lost = next((engine for engine in self.engines.engines if engine.info is None), None)
        if lost is not None:
            return lost.not_ready(timeout_s)
        why = next(filter(None, (problem_of(replica.channel) for replica in self._replicas.replicas)), "")
        return Unavailable(f"The tokenizer at {self._replicas} was not ready within {timeout_s:g} s{why and f' ({why})'}.")

    def _on_change(self) -> None:
        self._metrics.observe_backends(
            num_tokenizers=sum(replica.usable for replica in self._replicas.replicas),
            engines=[each.info for each in self.engines.engines if each.connected and each.info is not None],
            num_losses=self._replicas.num_losses + self.engines.num_losses,
        )
        self.readiness.note_change()
