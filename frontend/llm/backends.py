"""Backends: connects, watches and closes the services that one frontend uses.

Built and owned by AsyncLLM. Constructs the clients and connects them with each other; knows no requests.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator

import grpc

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.engine.client import EngineClient
from tetrad.frontend.engine.facts import TokenizerInfo
from tetrad.frontend.engine.link import EngineChannel
from tetrad.frontend.llm.output_processor import OutputProcessor
from tetrad.frontend.llm.readiness import Readiness
from tetrad.frontend.llm.replays import Replays
from tetrad.frontend.llm.unfinished_requests import UnfinishedRequests
from tetrad.frontend.net.discovery import Discovery, Endpoint
from tetrad.frontend.observability.metrics import FrontendMetrics
from tetrad.frontend.observability.recent_requests import RecentRequests
from tetrad.frontend.routing.kv_events_client import KvEventsClient
from tetrad.frontend.routing.member import Member
from tetrad.frontend.routing.placement import Dispatch
from tetrad.frontend.routing.pool import EnginePool
from tetrad.frontend.routing.prefill_first import PrefillFirst
from tetrad.frontend.routing.prefills import Prefills
from tetrad.frontend.routing.prefix_memory import PrefixMemory
from tetrad.frontend.routing.router import Router
from tetrad.frontend.tokenizer.bundle_client import BundleChunk, bundle_chunks
from tetrad.frontend.tokenizer.client import TokenizerClient
from tetrad.frontend.tokenizer.detokenizer_client import DetokenizerClient
from tetrad.frontend.tokenizer.link import TokenizerChannel
from tetrad.frontend.tokenizer.replicas import Replica, TokenizerReplicas
from tetrad.services.errors import Unavailable
from tetrad.services.rpc.carrier import Carrier


class Backends:
    """Clients of the tokenizers and the engine cores, with the unfinished requests and the output processor between them.

    Args:
        settings: addresses of the services, and how long they may be unreachable.
        metrics: take the processor's counts and the number of connected services.
        recent: records the requests that end.
        carrier: transport of the connections to the services.

    Attributes:
        dispatch: sends requests to the engine cores.
    """

    def __init__(self, settings: FrontendSettings, metrics: FrontendMetrics, recent: RecentRequests, carrier: Carrier) -> None:
        self._carrier = carrier
        self.metrics = metrics
        self._settings = settings
        self._engine_numbers = itertools.count()
        tokenizers, engines = (
            Discovery(targets, interval_s=settings.dns_refresh_interval_s)
            for targets in (settings.tokenizer_targets, settings.engine_targets)
        )
        # With a single engine core, routing needs no prefixes.
        self._prefix_affinity = 0.0 if engines.is_single else settings.prefix_affinity
        patience = {"recovery_timeout_s": settings.recovery_timeout_s, "stall_s": settings.tokenizer_stall_s}
        self._replicas = TokenizerReplicas(
            tokenizers, lambda endpoint: TokenizerChannel(self._connect(endpoint)), self._on_change
        )
        self.tokenizer = TokenizerClient(
            self._replicas,
            **patience,
            on_answer=metrics.observe_tokenizer_call,
            max_message_bytes=settings.max_message_bytes,
        )
        self.detokenizer = DetokenizerClient(self._replicas, **patience)
        self._replay_stream = DetokenizerClient(self._replicas, **patience)
        self.replays = Replays(self._replay_stream, self.tokenizer)
        self.requests = UnfinishedRequests(self.detokenizer, metrics, recent)
        self.processor = OutputProcessor(self.requests, self.detokenizer, self.tokenizer, metrics)
        self._prefills = Prefills(self.processor)
        self.engines = EnginePool(
            engines,
            self._join,
            Router(self._prefix_affinity),
            on_change=self._on_change,
            on_moved=self.requests.move,
        )
        self._prefill_first = PrefillFirst(
            self.engines,
            self._prefills,
            self.requests,
            metrics,
            min_tokens=settings.min_remote_prefill_tokens,
            timeout_s=settings.remote_prefill_timeout_s,
        )
        self.dispatch: Dispatch = self.engines
        self.readiness = Readiness(self._replicas, self.engines)

    @property
    def tokenizers(self) -> list[Replica]:
        """The tokenizers, in the order of the settings."""
        return self._replicas.replicas

    async def start(self, timeout_s: float | None) -> TokenizerInfo:
        """Connect to all services that requests need, and return the tokenizer's facts.

        Raises:
            Unavailable: a service is not connected after `timeout_s`; None: no time limit.
            FailedPrecondition: an engine has another revision of the contract.
        """
        self._replicas.start()
        self.detokenizer.start()
        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
                group.create_task(self.engines.start())
                group.create_task(self.detokenizer.wait_connected())
        except TimeoutError:
            raise self.not_ready(timeout_s or 0.0) from None
        except ExceptionGroup as errors:
            # The first failure has cancelled the other tasks: it alone is the cause.
            raise errors.exceptions[0] from None
        assert self._replicas.info is not None
        return self._replicas.info

    def tokenizer_bundle(self) -> AsyncGenerator[BundleChunk, None]:
        """Return the tokenizer's files; see bundle_client.py."""
        return bundle_chunks(self._replicas, self._settings.recovery_timeout_s)

    async def reset_media_caches(self) -> None:
        """Let every tokenizer forget its preprocessed images; raise Unavailable if one cannot be called."""
        await self._replicas.reset_media_caches()

    async def close(self) -> None:
        """Close all connections."""
        await self.engines.close()
        await self.detokenizer.close()
        await self._replay_stream.close()
        await self._replicas.close()

    def _connect(self, endpoint: Endpoint) -> grpc.aio.Channel:
        limit, tls = self._settings.max_message_bytes, self._settings.tls
        return self._carrier.connect(endpoint.target, server_name=endpoint.server_name, max_message_bytes=limit, tls=tls)

    def _join(self, endpoint: Endpoint) -> Member:
        """Return a member for an engine core, subscribed to its KV events if routing uses them and its admin port is known."""
        number, timeout_s = next(self._engine_numbers), self._settings.recovery_timeout_s
        engine = EngineClient(
            endpoint.target,
            EngineChannel(self._connect(endpoint)),
            self._prefills,
            recovery_timeout_s=timeout_s,
            number=number,
            max_message_bytes=self._settings.max_message_bytes,
        )
        prefixes, events = PrefixMemory(), None
        admin = endpoint.on_port_of(self._settings.engine_admin_targets) if self._prefix_affinity else None
        if admin is not None:
            events = KvEventsClient(admin.target, self._connect(admin), prefixes)
        return Member(endpoint, engine, prefixes, events)

    def not_ready(self, timeout_s: float) -> Unavailable:
        """Return the error for services that were not connected within `timeout_s`: it names the service and the cause."""
        if not self.engines.engines:
            text = f"No engine core was found within {timeout_s:g} s: {self.engines.discovery.problem}."
            return Unavailable(text)
        lost = next((engine for engine in self.engines.engines if engine.info is None), None)
        if lost is not None:
            return lost.not_ready(timeout_s)
        why = next(filter(None, (replica.link.problem for replica in self._replicas.replicas)), "")
        return Unavailable(f"The tokenizer at {self._replicas} was not ready within {timeout_s:g} s{why and f' ({why})'}.")

    def _on_change(self) -> None:
        self.metrics.observe_backends(
            num_tokenizers=sum(replica.usable for replica in self._replicas.replicas),
            engines={each.number: each.info for each in self.engines.engines if each.connected and each.info is not None},
            known_engines=[each.number for each in self.engines.engines],
            num_losses=self._replicas.num_losses + self.engines.num_losses,
        )
        # Chosen when engine cores change, not for each request: without producers, requests are sent as ever.
        self.dispatch = self._prefill_first if self.engines.has_producers else self.engines
        self._prefills.note_change()
        self.readiness.note_change()
