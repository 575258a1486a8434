"""EngineAdminClient: sends operators' commands to all engine cores. Knows EngineCoreAdminService; knows no requests.

A command raises if one engine core refuses it, even if others have executed it: every command can be repeated.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import grpc

from tetrad.frontend.engine.facts import EngineLoad
from tetrad.frontend.engine.facts_wire import decode_engine_load
from tetrad.frontend.engine.weights_client import WeightsClient
from tetrad.frontend.engine.wire import decode_lora, encode_lora
from tetrad.frontend.net.discovery import Endpoint
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.sampling_values import check_integer
from tetrad.services.errors import DeadlineExceeded, FailedPrecondition, InvalidRequest, NotFound, Unavailable
from tetrad.services.observability.profiling import stop_all
from tetrad.services.rpc.carrier import GRPC, Carrier
from tetrad.services.rpc.channel import is_call_closed
from tetrad.services.rpc.status import from_rpc_error
from tetrad.services.tls.identity import TlsFiles
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc

PauseMode = Literal["abort", "wait", "keep"]

_MODES: dict[PauseMode, engine_core_pb2.PauseMode] = {
    "abort": engine_core_pb2.PAUSE_MODE_ABORT,
    "wait": engine_core_pb2.PAUSE_MODE_WAIT,
    "keep": engine_core_pb2.PAUSE_MODE_KEEP,
}
_LEVELS = (0, 1, 2)
_KV_CACHE_ALONE = 3
"""Level at which the weights stay on the device."""
_TIMEOUT_S = 10.0
_PROFILE_TIMEOUT_S = 300.0
"""Seconds to wait for an answer: a worker writes its file first, which takes minutes for a long recording."""
_SLEEP_TIMEOUT_S = 600.0
"""Seconds to wait for an answer: running requests may finish first, and dropped weights are loaded again."""
_LORA_TIMEOUT_S = 300.0
"""Seconds to wait for an answer: a large adapter may be on a slow disk, and may wait for free memory."""
_LOAD_TIMEOUT_S = 0.8
"""Seconds to wait for an answer: the console asks once per second."""


@dataclass(frozen=True, slots=True)
class AdminState:
    """The combined state of the engine cores that answered in time.

    Attributes:
        is_paused: whether any engine core is paused, so that new requests wait there.
        is_sleeping: whether any engine core sleeps; a paused one sleeps at level 0.
        silent: the indices of the engine cores that did not answer.
    """

    is_paused: bool
    is_sleeping: bool
    silent: tuple[int, ...]


def mode_of(mode: PauseMode) -> engine_core_pb2.PauseMode:
    """Return a pause mode for messages. Raises InvalidRequest for another name."""
    if mode not in _MODES:
        raise InvalidRequest(f"mode must be one of {', '.join(_MODES)}, got {mode!r}.", field="mode")
    return _MODES[mode]


class EngineAdminClient:
    """The client of the admin services of all engine cores.

    Attributes:
        weights: updates of the weights.

    Args:
        endpoints: returns the present admin ports, one per engine core; if there are none, operators' commands fail.
        max_message_bytes: largest message.
        tls: identity of this process; None: connections are plain.
        carrier: transport of the connections.
    """

    def __init__(
        self,
        endpoints: Callable[[], Sequence[Endpoint]],
        *,
        max_message_bytes: int,
        tls: TlsFiles | None = None,
        carrier: Carrier = GRPC,
    ) -> None:
        self._carrier = carrier
        self._endpoints = endpoints
        self._max_message_bytes = max_message_bytes
        self._tls = tls
        self._channels: dict[Endpoint, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.weights = WeightsClient(self._reachable, self._ask)

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*self._closing, *(channel.close() for channel in self._channels.values()))

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Clear the prefix caches; return whether every engine core did so. An engine core cannot while requests hold blocks.

        Args:
            reset_running_requests: preempt running requests, so that they hold no blocks.
        """
        request = engine_core_pb2.ResetPrefixCacheRequest(reset_running_requests=reset_running_requests)
        try:
            await self._ask_all("ResetPrefixCache", request)
        except FailedPrecondition:
            return False
        return True

    async def reset_encoder_cache(self) -> None:
        """Clear the caches of media's embeddings; those that running requests will read are forgotten afterwards."""
        await self._ask_all("ResetEncoderCache", engine_core_pb2.ResetEncoderCacheRequest())

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """Stop scheduling; later requests wait for `resume`.

        Args:
            mode: "abort" ends all requests, "wait" lets running ones finish and waits for them, "keep" freezes them.
            clear_cache: also clear the prefix cache; frozen requests are computed again.
        """
        request = engine_core_pb2.PauseRequest(mode=_MODES[mode], clear_cache=clear_cache)
        await self._ask_all("Pause", request, timeout_s=_SLEEP_TIMEOUT_S if mode == "wait" else _TIMEOUT_S)

    async def resume(self) -> None:
        """Undo `pause`."""
        await self._ask_all("Resume", engine_core_pb2.ResumeRequest())

    async def state(self) -> AdminState:
        """Return whether any engine is paused or sleeps.

        Raises:
            FailedPrecondition: no admin port is reachable.
            Unavailable: no engine core answered in time.
        """
        self.check_targets()
        loads = await self.loads_known()
        silent = tuple(place for place, load in enumerate(loads) if load is None)
        if len(silent) == len(loads):
            raise Unavailable(f"No engine core answered within {_LOAD_TIMEOUT_S:g} s; try again.", retry_after_s=1.0)
        is_paused = any(load is not None and load.paused for load in loads)
        return AdminState(is_paused, is_paused or any(load is not None and load.sleeping for load in loads), silent)

    async def sleep(self, level: int = 1, mode: PauseMode = "keep") -> None:
        """Let the engine cores and their workers release device memory; new requests are refused until `wake_up`.

        Args:
            level: 0 only pauses, 1 keeps weights in host memory, 2 drops them.
            mode: as in `pause`; frozen requests are recomputed afterwards.

        Raises InvalidRequest for another level or mode, AlreadyExists if an engine sleeps at another level.
        """
        if level not in _LEVELS:
            raise InvalidRequest(f"level must be 0, 1 or 2, got {level}.", field="level")
        request = engine_core_pb2.EngineCoreAdminServiceSleepRequest(level=level, mode=mode_of(mode))
        await self._ask_all("Sleep", request, timeout_s=_SLEEP_TIMEOUT_S)

    async def release_kv_cache_memory(self) -> None:
        """Let the workers release the memory of their KV caches alone; requests wait, or are refused, as during `sleep`.

        `wake_up` undoes it. Raises AlreadyExists if an engine sleeps.
        """
        request = engine_core_pb2.EngineCoreAdminServiceSleepRequest(level=_KV_CACHE_ALONE, mode=mode_of("keep"))
        await self._ask_all("Sleep", request, timeout_s=_SLEEP_TIMEOUT_S)

    async def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Undo `sleep`.

        Args:
            tags: the parts to wake up: "weights", "kv_cache". Empty: all.
        """
        request = engine_core_pb2.EngineCoreAdminServiceWakeUpRequest(tags=tags)
        await self._ask_all("WakeUp", request, timeout_s=_SLEEP_TIMEOUT_S)

    async def loads_known(self) -> list[EngineLoad | None]:
        """Return the load of each engine, in the order of the targets; None for an engine that does not answer in time."""
        answers = await asyncio.gather(
            *(stub.GetLoad(engine_core_pb2.GetLoadRequest(), timeout=_LOAD_TIMEOUT_S) for stub in self._stubs()),
            return_exceptions=True,
        )
        return [
            decode_engine_load(each.load) if isinstance(each, engine_core_pb2.GetLoadResponse) else None for each in answers
        ]

    def check_targets(self) -> None:
        """Raise FailedPrecondition if no admin port is known."""
        self._reachable()

    def kv_events(self, start_sequence_number: int = 0) -> list[AsyncIterator[engine_core_pb2.SubscribeKvEventsResponse]]:
        """Return for each engine core a stream of its KV events; the streams never end by themselves.

        An engine core has no work for a stream that is not iterated.

        Args:
            start_sequence_number: the first batch of each stream, if it is still stored; 0: begin with a snapshot.

        Raises:
            FailedPrecondition: no admin port is reachable.
        """
        request = engine_core_pb2.SubscribeKvEventsRequest(start_sequence_number=start_sequence_number)
        return [_mapped(stub, request) for stub in self._reachable()]

    async def start_profile(self, prefix: str = "", delay: int = 0, most: int = 0) -> None:
        """Start profiles of all engine cores and their workers; if one start fails, stop the profiles started by this call.

        Args:
            prefix: prefix of the files' names.
            delay: number of steps that a worker runs before it records.
            most: number of steps that it records; 0: all until `stop_profile`.

        Raises InvalidRequest for a number that is negative or does not fit 32 bits.
        """
        for name, value in (("delay_iterations", delay), ("max_iterations", most)):
            check_integer(name, value)
            if not 0 <= value < 1 << 32:
                raise InvalidRequest(f"{name} must be in [0, 4294967295], got {value}.", field=name)
        request = engine_core_pb2.EngineCoreAdminServiceStartProfileRequest(
            prefix=prefix, delay_iterations=delay, max_iterations=most
        )
        stubs = self._reachable()
        answers = await asyncio.gather(*(self._ask(stub.StartProfile, request) for stub in stubs), return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if failures:
            began = (stub for stub, answer in zip(stubs, answers, strict=True) if not isinstance(answer, BaseException))
            await asyncio.gather(*map(self._stop_profile, began), return_exceptions=True)
            raise failures[0]

    async def stop_profile(self) -> list[str]:
        """Stop all profiles; return the paths of the files, on the machines that wrote them. NotFound if none is active."""
        return await stop_all(*(self._stop_profile(stub) for stub in self._reachable()))

    async def collective_rpc(
        self, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> list[Any]:
        """Call a registered method of every worker, and return their results.

        Args:
            method: name of the method.
            args, kwargs: arguments of JSON types.
            timeout_s: maximum wait in seconds; None: no limit.

        Raises:
            NotFound: there is no such method.
            InvalidRequest: the method does not accept the arguments.
            DeadlineExceeded: the method did not finish within `timeout_s`.
        """
        request = engine_core_pb2.EngineCoreAdminServiceCollectiveRpcRequest(
            method=method, args_json=json.dumps(list(args)), kwargs_json=json.dumps(dict(kwargs or {})), timeout_s=timeout_s
        )
        # The engine cores enforce the time limit; this longer one ends calls to engine cores that do not answer.
        patience_s = None if timeout_s is None else timeout_s + _TIMEOUT_S
        try:
            answers = await asyncio.gather(*(stub.CollectiveRpc(request, timeout=patience_s) for stub in self._reachable()))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return [json.loads(result) for answer in answers for result in answer.results_json]

    async def load_lora(self, lora: LoRARequest) -> None:
        """Load an adapter into every engine core; if one refuses it, the others get back the one that they had under its id.

        Raises:
            NotFound, ModelError: the adapter does not exist or cannot be used.
            AlreadyExists: another adapter has its id.
        """
        stubs = self._reachable()
        known = await asyncio.gather(*map(self._list_loras, stubs))
        answers = await asyncio.gather(*(self._load_lora(stub, lora) for stub in stubs), return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if not failures:
            return
        done = [place for place, answer in enumerate(answers) if not isinstance(answer, BaseException)]
        before = [next((each for each in known[place] if each.lora_int_id == lora.lora_int_id), None) for place in done]
        undo = (self._restore_lora(stubs[place], lora, each) for place, each in zip(done, before, strict=True))
        await asyncio.gather(*undo, return_exceptions=True)
        raise failures[0]

    async def _load_lora(self, stub: engine_core_pb2_grpc.EngineCoreAdminServiceStub, lora: LoRARequest) -> None:
        request = engine_core_pb2.EngineCoreAdminServiceLoadLoraRequest(lora=encode_lora(lora))
        await self._ask(stub.LoadLora, request, timeout_s=_LORA_TIMEOUT_S)

    async def _restore_lora(
        self, stub: engine_core_pb2_grpc.EngineCoreAdminServiceStub, lora: LoRARequest, before: LoRARequest | None
    ) -> None:
        """Undo a load: load the adapter that had the id before, or unload this one if there was none."""
        if before is not None:
            await self._load_lora(stub, replace(before, load_inplace=lora.load_inplace))
            return
        await self._ask(stub.UnloadLora, engine_core_pb2.EngineCoreAdminServiceUnloadLoraRequest(id=lora.lora_int_id))

    async def unload_lora(self, lora_id: int) -> bool:
        """Unload an adapter from every engine core; return whether any of them had it.

        FailedPrecondition while unfinished requests use it.
        """
        request = engine_core_pb2.EngineCoreAdminServiceUnloadLoraRequest(id=lora_id)
        calls = (self._ask(stub.UnloadLora, request, timeout_s=_LORA_TIMEOUT_S) for stub in self._reachable())
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NotFound):
                raise answer
        return any(not isinstance(answer, BaseException) for answer in answers)

    async def list_loras(self) -> list[LoRARequest]:
        """Return the adapters of all engine cores, each once."""
        lists = await asyncio.gather(*map(self._list_loras, self._reachable()))
        return list({lora.lora_int_id: lora for loras in lists for lora in loras}.values())

    async def _list_loras(self, stub: engine_core_pb2_grpc.EngineCoreAdminServiceStub) -> list[LoRARequest]:
        """Return the adapters of one engine core, which lists many adapters in several messages."""
        found: list[LoRARequest] = []
        has_more = True
        while has_more:
            after_id = found[-1].lora_int_id if found else 0
            answer = await self._ask(stub.ListLoras, engine_core_pb2.ListLorasRequest(after_id=after_id))
            found += map(decode_lora, answer.loras)
            has_more = answer.has_more and len(answer.loras) > 0
        return found

    async def pin_lora(self, lora_id: int) -> None:
        """Keep an adapter in memory on every engine core; NotFound if one does not have it."""
        request = engine_core_pb2.EngineCoreAdminServicePinLoraRequest(id=lora_id)
        await self._ask_all("PinLora", request, timeout_s=_LORA_TIMEOUT_S)

    async def _stop_profile(self, stub: engine_core_pb2_grpc.EngineCoreAdminServiceStub) -> list[str]:
        request = engine_core_pb2.EngineCoreAdminServiceStopProfileRequest()
        answer = await self._ask(stub.StopProfile, request, timeout_s=_PROFILE_TIMEOUT_S)
        return list(answer.paths)

    async def _ask_all(self, method: str, request: object, *, timeout_s: float = _TIMEOUT_S) -> list[Any]:
        calls = [self._ask(getattr(stub, method), request, timeout_s=timeout_s) for stub in self._reachable()]
        return list(await asyncio.gather(*calls))

    def _reachable(self) -> list[engine_core_pb2_grpc.EngineCoreAdminServiceStub]:
        stubs = self._stubs()
        if not stubs:
            raise FailedPrecondition(
                "No admin port of an engine core is known: give --engine-admin-targets, or LLM(admin_target=...)."
            )
        return stubs

    def _stubs(self) -> list[engine_core_pb2_grpc.EngineCoreAdminServiceStub]:
        """Return one stub per present engine core; close the connections to all others."""
        endpoints = list(self._endpoints())
        for endpoint in set(self._channels) - set(endpoints):
            closing = asyncio.create_task(self._channels.pop(endpoint).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        for endpoint in set(endpoints) - set(self._channels):
            self._channels[endpoint] = self._carrier.connect(
                endpoint.target, server_name=endpoint.server_name, max_message_bytes=self._max_message_bytes, tls=self._tls
            )
        return [engine_core_pb2_grpc.EngineCoreAdminServiceStub(self._channels[endpoint]) for endpoint in endpoints]

    async def _ask(self, call: Callable[..., Awaitable[Any]], request: object, *, timeout_s: float = _TIMEOUT_S) -> Any:
        try:
            return await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            mapped = from_rpc_error(error)
            if isinstance(mapped, DeadlineExceeded):
                raise Unavailable(f"An engine core did not answer within {timeout_s:g} s; try again.") from error
            raise mapped from error
        except asyncio.CancelledError as error:
            raise _left(error) from None


async def _mapped(
    stub: engine_core_pb2_grpc.EngineCoreAdminServiceStub, request: engine_core_pb2.SubscribeKvEventsRequest
) -> AsyncIterator[engine_core_pb2.SubscribeKvEventsResponse]:
    """Yield the events of an engine core; a failure is raised as a TetradError."""
    try:
        async for message in stub.SubscribeKvEvents(request):
            yield message
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except asyncio.CancelledError as error:
        raise _left(error) from None


def _left(error: asyncio.CancelledError) -> BaseException:
    """Return Unavailable if the connection was closed during the call; return `error` if the caller was cancelled."""
    return Unavailable("An engine core left; try again.") if is_call_closed(error) else error
