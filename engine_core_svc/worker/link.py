"""Worker link: prepares a worker group until it accepts plans, the first time and after each loss.

The phases are: meet, load the model, size and allocate the KV cache, warm up, open the Execute streams; each phase for all
ranks together. The first layout is kept, so block tables stay valid across workers. The loss of one rank is the loss of the
group. Knows nothing of requests.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.adapter import Adapter
from tetrad.engine_core_svc.core.media import Modality
from tetrad.engine_core_svc.worker.executor import Executor
from tetrad.engine_core_svc.worker.facts_wire import decode_facts
from tetrad.engine_core_svc.worker.first_meeting import FirstMeeting
from tetrad.engine_core_svc.worker.group import NewWeights, Pause, PlanStream, Weights, WorkerFacts
from tetrad.engine_core_svc.worker.group_stream import GroupStream
from tetrad.engine_core_svc.worker.kv_groups_wire import block_size_bytes, decode_groups, least_room, tokens_per_block
from tetrad.engine_core_svc.worker.kv_layout import KVCacheLayout, largest_step, longest_prompt, plan_layout
from tetrad.engine_core_svc.worker.lora_wire import encode_adapter, encode_lora_limits
from tetrad.engine_core_svc.worker.pause_link import PauseLink
from tetrad.engine_core_svc.worker.rank_link import Info, RankLink, error_of, unavailable_if_replaced
from tetrad.engine_core_svc.worker.speculative_wire import encode_speculative
from tetrad.engine_core_svc.worker.together import together
from tetrad.engine_core_svc.worker.weights_file import NotKept, WeightsFile
from tetrad.engine_core_svc.worker.weights_link import WeightsLink
from tetrad.services.errors import FailedPrecondition, ModelError, TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.observability.profiling import stop_all
from tetrad.services.rpc.carrier import GRPC, Carrier
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import types_pb2, worker_pb2

log = get_logger()


class WorkerLink:
    """A WorkerGroup over a carrier.

    Args:
        settings: settings of the engine core.
        epoch: epoch of this engine core.
        carrier: connects to the workers.

    If the workers report a larger epoch at the first meeting, this engine core takes the next larger one.
    """

    def __init__(self, settings: EngineCoreSettings, epoch: int, carrier: Carrier = GRPC) -> None:
        self._settings = settings
        self.epoch = epoch
        self._ranks = [RankLink(settings, rank, target, carrier) for rank, target in enumerate(settings.worker_targets)]
        self._leader = self._ranks[0]
        self._pauses = PauseLink(self._leader.stub)
        file = settings.kept_weights_file
        self._weights = WeightsLink(
            self._ranks, self._load_request, NotKept() if file is None else WeightsFile(file, settings.model)
        )
        self._first_meeting = FirstMeeting(len(self._ranks), settings.recovery_timeout_s)
        self._layout: KVCacheLayout | None = None
        self._groups: Sequence[Sequence[worker_pb2.KvCacheGroup]] = ()  # groups of that layout, by rank, as first reported
        self._facts: WorkerFacts | None = None
        self._is_up = False

    @property
    def num_ranks(self) -> int:
        """The number of workers of the group."""
        return len(self._ranks)

    async def bring_up(self) -> tuple[KVCacheLayout, WorkerFacts]:
        """Make every rank ready for plans; return the layout of the KV cache and the facts of the workers.

        Raises Unavailable if a worker cannot be reached, is lost or makes no progress meanwhile; DeadlineExceeded if the ranks
        of a group have not met for the first time within recovery_timeout_s; FailedPrecondition with reason STALE_EPOCH if a
        worker serves a newer engine core; NotFound, ModelError or another permanent error if they cannot serve the model.
        """
        try:
            infos = await self._first_meeting.within_limit(self._meet_and_join())
            self._facts = await self._load_model(infos[0])
            self._layout = self._layout or await self._find_layout(self._facts)
            requests = [self._kv_cache_request(self._layout, groups) for groups in self._groups]
            await together(*map(RankLink.initialize_kv_cache, self._ranks, requests))
            await together(*(rank.warm_up() for rank in self._ranks))
        except grpc.RpcError as error:
            raise error_of(error) from error
        self._is_up = True
        return self._layout, self._facts

    def require_up(self) -> tuple[KVCacheLayout, WorkerFacts]:
        """Return the layout and facts of the first bring_up, which must have succeeded."""
        assert self._layout is not None
        assert self._facts is not None
        return self._layout, self._facts

    @property
    def pause(self) -> Pause | None:
        """The stored pause of the engine; None: no worker was connected yet."""
        return self._pauses.pause

    async def keep_pause(self, pause: Pause) -> None:
        """Make the leader store this pause, and each later leader when it is connected."""
        await self._pauses.keep(pause)

    @property
    def weights(self) -> Weights:
        """The weights after the last finished update."""
        return self._weights.present

    async def check_weights(self, path: str) -> NewWeights:
        """Let every rank compare the files of other weights with the model's."""
        return await self._weights.check(path)

    async def replace_weights(self, update: NewWeights, version: str) -> None:
        """Let every rank load other weights, or none."""
        self._is_up = False
        await self._weights.replace(update, version)

    async def name_weights(self, version: str) -> None:
        """Give the present weights another name."""
        await self._weights.name(version)

    @property
    def computes_on_cores(self) -> bool:
        """Whether the present workers have no device of their own."""
        return self._facts is not None and self._facts.device == "cpu"

    async def connect(self, on_change: Callable[[], None]) -> PlanStream:
        """Prepare the workers if necessary, and return an open stream to them."""
        if not self._is_up:
            await self.bring_up()
        self._is_up = False  # after the end of this stream, workers may have to be prepared again
        makers = [partial(self._executor, rank) for rank in self._ranks]
        stream = makers[0](on_change) if len(makers) == 1 else GroupStream(makers, on_change)
        try:
            await stream.start()
        except FailedPrecondition as error:
            raise unavailable_if_replaced(error) from error
        return stream

    async def sleep(self, level: int) -> None:
        """Let every rank release its memory; no Execute stream may be open. Raises Unavailable if a rank has no model."""
        try:
            await self._call_all("Sleep", worker_pb2.WorkerLifecycleServiceSleepRequest(level=level))
        except FailedPrecondition as error:
            raise unavailable_if_replaced(error) from error

    async def wake_up(self, tags: Sequence[str]) -> bool:
        """Undo `sleep` for some parts (empty: all); return whether any part still sleeps. See worker.proto for errors.

        Weights that are loaded again may take as long as the first time, if there is progress. The ranks meet before: a rank
        that was replaced in its sleep would load the whole model instead of its part.
        """
        if not tags or "weights" in tags:
            try:
                await self._load_model((await self._meet_and_join())[0])
            except grpc.RpcError as error:
                raise from_rpc_error(error) from error
        answers = await self._call_all("WakeUp", worker_pb2.WorkerLifecycleServiceWakeUpRequest(tags=tags))
        return any(answer.sleeping for answer in answers)

    async def start_profile(self, prefix: str, delay: int = 0, most: int = 0) -> None:
        """Start a profile of every rank. The first one, which alone gets plans, waits for `delay` steps and records `most`."""
        request = worker_pb2.WorkerLifecycleServiceStartProfileRequest
        windowed = request(prefix=prefix, delay_iterations=delay, max_iterations=most)
        others = (rank.call("StartProfile", request(prefix=prefix)) for rank in self._ranks[1:])
        await together(self._ranks[0].call("StartProfile", windowed), *others)

    async def stop_profile(self) -> list[str]:
        """Return the paths of the ranks' traces; a rank that was replaced meanwhile has none."""
        return await stop_all(*(self._stop_profile(rank) for rank in self._ranks))

    async def _stop_profile(self, rank: RankLink) -> list[str]:
        return [(await rank.call("StopProfile", worker_pb2.WorkerLifecycleServiceStopProfileRequest())).path]

    async def collective_rpc(self, method: str, args: str, kwargs: str, *, timeout_s: float | None) -> list[str]:
        """Call a registered method of every rank; return the results by rank."""
        request = worker_pb2.WorkerLifecycleServiceCollectiveRpcRequest(method=method, args_json=args, kwargs_json=kwargs)
        return [answer.result_json for answer in await self._call_all("CollectiveRpc", request, timeout_s=timeout_s)]

    async def load_lora(self, adapter: Adapter) -> bytes:
        """Let every rank load an adapter; return the hash of its files. If a rank refuses it, no rank keeps it."""
        request = worker_pb2.WorkerLifecycleServiceLoadLoraRequest(lora=encode_adapter(adapter))
        try:
            answers = await self._call_all("LoadLora", request)
            return _common_digest([bytes(answer.digest) for answer in answers])
        except TetradError as error:
            found = unavailable_if_replaced(error)
            if len(self._ranks) > 1 and not isinstance(found, Unavailable):  # a lost group keeps nothing
                with suppress(TetradError):
                    await self.unload_lora(adapter)
            raise found from error

    async def unload_lora(self, adapter: Adapter) -> None:
        """Let every rank forget an adapter."""
        await self._call_all("UnloadLora", worker_pb2.WorkerLifecycleServiceUnloadLoraRequest(id=adapter.key))

    async def close(self) -> None:
        """Close the channels."""
        self._first_meeting.close()
        await asyncio.gather(*(rank.close() for rank in self._ranks))

    async def _call_all(self, method: str, request: Any, **options: float | None) -> list[Any]:
        """Call a unary method of every rank's lifecycle service; raise the first error as a TetradError."""
        return await together(*(rank.call(method, request, **options) for rank in self._ranks))

    def _executor(self, rank: RankLink, on_change: Callable[[], None]) -> Executor:
        return Executor(
            rank.channel,
            depth=self._settings.steps_in_flight,
            epoch=self.epoch,
            vocab_size=self.require_up()[1].vocab_size,
            step_timeout_s=self._settings.step_timeout_s,
            moves_blocks=self._settings.kv_role != "none",
            on_change=on_change,
        )

    async def _meet_and_join(self) -> list[Info]:
        infos = await self._meet()
        await self._join(infos)
        return infos

    async def _meet(self) -> list[Info]:
        """Return the workers' descriptions, after checking that they may serve this engine core."""
        infos = await together(*(rank.info() for rank in self._ranks))
        newest = max(info.epoch for info in infos)
        if newest > self.epoch and self._layout is None:
            # An earlier engine core, on a host whose clock is ahead, or before the clock was set back. The last to start wins.
            self.epoch = newest + 1
        elif newest > self.epoch:
            raise FailedPrecondition(
                f"Another engine core, of epoch {newest}, has the worker; this one is of epoch {self.epoch}. "
                "A worker serves one engine core: start this one with another worker, or not at all.",
                reason="STALE_EPOCH",
            )
        await self._pauses.meet(infos[0])
        self._weights.meet(infos)
        self._check_logprobs_mode(infos)
        return infos

    async def _join(self, infos: Sequence[Info]) -> None:
        """Let the ranks meet, even if they have met before: connections of an earlier group may be broken."""
        if len(infos) == 1 and not infos[0].HasField("group"):
            return
        self._check_versions([info.version for info in infos])
        self._check_processors([tuple(info.logits_processors) for info in infos])
        if len({info.instance_id for info in infos}) < len(infos):
            raise FailedPrecondition(
                f"Two ranks have one worker: worker_target {self._settings.worker_target!r} needs an address for each rank."
            )
        group = worker_pb2.WorkerGroup(
            tensor_parallel_size=self._settings.tensor_parallel_size,
            pipeline_parallel_size=self._settings.pipeline_parallel_size,
            group_epoch=time.time_ns(),
            addresses=self._settings.worker_targets,
        )
        await together(*(rank.join(group) for rank in self._ranks))
        log.info("group.joined", num_ranks=len(infos), group_epoch=group.group_epoch)

    def _check_versions(self, versions: Sequence[str]) -> None:
        """Refuse ranks of different releases: with a permanent error at the start, Unavailable later, during an update."""
        if len(set(versions)) > 1:
            named = ", ".join(f"rank {rank} runs {version}" for rank, version in enumerate(versions))
            text = f"The workers of a group need one release, but {named}; start all of them from one release."
            raise FailedPrecondition(text) if self._layout is None else Unavailable(text)

    def _check_processors(self, names: Sequence[tuple[str, ...]]) -> None:
        """Refuse ranks with different logits processors, with errors as in _check_versions: they would sample other tokens."""
        if len(set(names)) > 1:
            named = ", ".join(f"rank {rank} has {list(each)}" for rank, each in enumerate(names))
            text = f"The workers of a group need the same logits_processors, in one order, but {named}."
            raise FailedPrecondition(text) if self._layout is None else Unavailable(text)

    def _check_logprobs_mode(self, infos: Sequence[Info]) -> None:
        """Raise Unavailable if a worker is of a release that would bring raw log-probabilities in place of other values."""
        mode = self._settings.logprobs_mode
        old = [info.version for info in infos if types_pb2.CAPABILITY_LOGPROBS_MODES not in info.capabilities]
        if mode != "raw_logprobs" and old:
            raise Unavailable(f"A worker of release {old[0]} does not support logprobs_mode {mode}; upgrade it.")

    def _load_request(self) -> worker_pb2.LoadModelRequest:
        settings = self._settings
        return worker_pb2.LoadModelRequest(
            model=settings.model,
            dtype=settings.dtype,
            quantization=settings.quantization,
            hf_overrides_json=settings.hf_overrides,
            random_weights=settings.load_format == "dummy",
            seed=settings.seed,
            lora_limits=encode_lora_limits(settings),
            runner=settings.runner,
            convert=settings.convert,
            pooler_config_json=settings.pooler_config,
            speculative=encode_speculative(settings),
            enable_expert_parallel=settings.enable_expert_parallel,
            logprobs_mode="" if settings.logprobs_mode == "raw_logprobs" else settings.logprobs_mode,
        )

    async def _load_model(self, info: Info) -> WorkerFacts:
        settings = self._settings
        log.info("model.loading", model=settings.model, device=info.device)
        model = await self._weights.load()
        log.info("model.loaded", model=model.model, weights_size_bytes=model.weights_size_bytes, dtype=model.dtype)
        facts = decode_facts(info, model, max_message_bytes=settings.max_message_bytes)
        self._check_modalities(facts.modalities)
        return facts

    def _check_modalities(self, modalities: tuple[Modality, ...]) -> None:
        """Raise Unavailable if later workers do not take the media of the first ones."""
        if self._layout is not None and self._facts is not None and modalities != self._facts.modalities:
            names = [", ".join(each.name for each in some) or "none" for some in (modalities, self._facts.modalities)]
            raise Unavailable(f"The worker takes other media ({names[0]}) than the one before it ({names[1]}); upgrade it.")

    async def _find_layout(self, facts: WorkerFacts) -> KVCacheLayout:
        settings = facts.settings_for_model(self._settings)
        spec_request = worker_pb2.GetKvCacheSpecRequest(block_size=settings.block_size)
        specs = await together(*(rank.kv_cache_spec(spec_request) for rank in self._ranks))
        memory_request = worker_pb2.DetermineAvailableMemoryRequest(
            gpu_memory_utilization=settings.gpu_memory_utilization,
            max_num_batched_tokens=largest_step(settings, facts.max_position_embeddings),
            max_num_encoder_tokens=facts.largest_item(longest_prompt(settings, facts.max_position_embeddings)),
        )
        available = await together(*(rank.available_bytes(memory_request) for rank in self._ranks))
        self._groups = [spec.groups for spec in specs]
        largest, available_bytes = least_room([block_size_bytes(groups) for groups in self._groups], available)
        groups = self._groups[0]
        item_bytes = memory_request.max_num_encoder_tokens * facts.encoded_position_bytes
        block_size = tokens_per_block(groups, settings.block_size)
        layout = plan_layout(
            settings,
            block_size_bytes=largest,
            available_bytes=available_bytes,
            max_position_embeddings=facts.max_position_embeddings,
            cache_dtype=" and ".join(sorted({group.dtype for group in groups})),
            groups=decode_groups(groups, block_size),
            block_size=block_size,
            encoded_item_bytes=item_bytes if facts.is_encoder_decoder else None,
        )
        log.info(
            "kv_cache.planned",
            num_blocks=layout.num_blocks,
            block_size=layout.block_size,
            max_model_len=layout.max_model_len,
            sliding_windows=[group.sliding_window for group in layout.groups if group.sliding_window],
            kv_cache_dtype=layout.cache_dtype,
            **({"encoded_items": layout.num_encoded_items} if facts.is_encoder_decoder else {}),
        )
        return layout

    def _kv_cache_request(
        self, layout: KVCacheLayout, groups: Sequence[worker_pb2.KvCacheGroup]
    ) -> worker_pb2.InitializeKvCacheRequest:
        return worker_pb2.InitializeKvCacheRequest(
            num_blocks=layout.num_blocks,
            block_size=layout.block_size,
            max_model_len=layout.max_model_len,
            max_num_seqs=self._settings.max_num_seqs,
            max_num_batched_tokens=layout.max_num_batched_tokens,
            num_host_blocks=layout.num_host_blocks,
            groups=groups if len(groups) > 1 else (),
            encoder_cache_size=0 if self._facts is None else self._facts.encoder_cache_size(layout),
        )


def _common_digest(digests: Sequence[bytes]) -> bytes:
    """Return the hash of an adapter's files. Raises ModelError if the ranks have read different files."""
    other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    if other is not None:
        raise ModelError(f"Rank {other} has other files than rank 0; all ranks need the same files at this path.")
    return digests[0]
