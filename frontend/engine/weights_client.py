"""WeightsClient: replaces the weights of all engine cores, or of none.

Called by the HTTP API and the library. Every engine core first checks the new weights on its workers, then all apply them. If
one cannot, those that could get back what they had. The engine cores know which weights are checked: other frontends may have
ordered the earlier steps of an update. Knows EngineCoreAdminService; knows no requests.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tetrad.frontend.request.weight_versions import UNNAMED
from tetrad.services.errors import FailedPrecondition, InvalidRequest, Unavailable
from tetrad.services.log import get_logger
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import engine_core_pb2_grpc

_TIMEOUT_S = 3600.0
"""Seconds to wait for an answer: workers read a whole checkpoint, and running requests may finish first."""
_CHECK_TIMEOUT_S = 600.0
_PATIENCE_S = 60.0
"""Seconds in which an engine core that was lost during an update may come back and apply it."""
_RETRY_S = 0.5
_MOST_VERSION_CHARS = 256

Stub = engine_core_pb2_grpc.EngineCoreAdminServiceStub
Ask = Callable[..., Awaitable[Any]]
T = TypeVar("T")

log = get_logger()


@dataclass(frozen=True, slots=True)
class EngineWeights:
    """The weights of one engine core.

    Attributes:
        version: their name; "default": they have none.
        path: where those of the last update are; empty: they are the model's own.
    """

    version: str
    path: str


class WeightsClient:
    """The commands of an update, to every engine core.

    Args:
        stubs: returns the stubs of all engine cores; raises FailedPrecondition if there are none.
        ask: calls a method of a stub and maps its errors.
    """

    def __init__(self, stubs: Callable[[], Sequence[Stub]], ask: Ask) -> None:
        self._stubs, self._ask = stubs, ask
        self._updating = asyncio.Lock()  # guards a whole update against the commands of the next one

    async def present(self) -> list[EngineWeights]:
        """Return the weights of each engine core."""
        infos = await self._all(self._info)
        return [EngineWeights(info.weight_version or UNNAMED, info.weights_path) for info in infos]

    async def version(self) -> str:
        """Return the name of the weights; "default" if they have none. Raises Unavailable if engine cores differ."""
        versions = sorted({weights.version for weights in await self.present()})
        if len(versions) > 1:
            raise Unavailable(f"The engine cores have weights of different versions: {', '.join(versions)}; update them again.")
        return versions[0]

    async def update(self, path: str, version: str | None = None, mode: pb.PauseMode = pb.PAUSE_MODE_KEEP) -> str:
        """Replace the weights by those at a path; return their name. Updates that are ordered together follow one another.

        Args:
            path: a directory with a whole checkpoint of the same shapes, or a .gguf file, as the workers see it.
            version: their name; None: that of the weights before.
            mode: what happens to unfinished requests first; those that are kept are computed again.

        Raises:
            NotFound: there is no such directory.
            ModelError: the files do not fit the model, or cannot be loaded. The weights before serve.
            Unavailable: an engine core or a worker was lost, and did not come back.
        """
        async with self._updating:
            await self.start()
            await self.check({"path": path})
            return await self.finish(version, mode, path=path)

    async def reload(self, path: str = "") -> None:
        """Replace the weights by those at a path; empty: read the present ones again, where they are."""
        if not path:
            info = (await self._all(self._info))[0]
            path = info.weights_path or info.model
        await self.update(path)

    async def init(self, init_info: Mapping[str, Any]) -> None:
        """Choose how weights reach the workers: the backend "disk" alone. Raises Unsupported for another one."""
        request = pb.InitWeightTransferRequest(init_info_json=json.dumps(dict(init_info)))
        await self._all(lambda stub: self._ask(stub.InitWeightTransfer, request))

    async def start(self) -> None:
        """Begin an update; drop one that was begun and not finished."""
        await self._all(lambda stub: self._until_there(lambda: self._start_one(stub)))

    async def check(self, update_info: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let every worker check the new weights, {"path": ...}, which `finish` applies."""
        if not isinstance(update_info, Mapping):
            raise InvalidRequest("update_info must be one object: every rank reads the same path.", field="update_info")
        request = pb.UpdateWeightsRequest(update_info_json=json.dumps(dict(update_info)))
        await self._all(lambda stub: self._check(stub, request))

    async def finish(self, version: str | None = None, mode: pb.PauseMode = pb.PAUSE_MODE_KEEP, *, path: str = "") -> str:
        """Apply the checked weights; return their name.

        Args:
            version, mode: see `update`.
            path: where the weights are; empty: the engine cores know it.

        Raises:
            FailedPrecondition: no weights are checked, or others, by updates that were ordered at the same time.
            TetradError: see `update`.
        """
        request = pb.FinishWeightUpdateRequest(weight_version=checked_version(version or ""), mode=mode)
        stubs = self._stubs()
        before = await asyncio.gather(*(self._until_there(partial(self._info, stub)) for stub in stubs))
        path = _checked_path(before, path)
        calls = (
            self._finish(stub, request, path, is_checked=info.checked_weights_path == path)
            for stub, info in zip(stubs, before, strict=True)
        )
        answers = await asyncio.gather(*calls, return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if not failures:
            versions = [answer.weight_version for answer in answers if not isinstance(answer, BaseException)]
            return versions[0] or UNNAMED
        done = [place for place, answer in enumerate(answers) if not isinstance(answer, BaseException)]
        undone = await asyncio.gather(*(self._undo(stubs[place], before[place]) for place in done), return_exceptions=True)
        for error in undone:
            if isinstance(error, BaseException):
                log.error("weights.not_undone", error=str(error))
        raise failures[0]

    async def name(self, version: str) -> None:
        """Give the present weights another name."""
        request = pb.UpdateWeightVersionRequest(weight_version=checked_version(version))
        await self._all(lambda stub: self._until_there(lambda: self._ask(stub.UpdateWeightVersion, request)))

    async def _finish(
        self, stub: Stub, request: pb.FinishWeightUpdateRequest, path: str, *, is_checked: bool
    ) -> pb.FinishWeightUpdateResponse:
        """Apply an update on one engine core; check the weights first if it was started again since they were checked."""

        async def finish() -> pb.FinishWeightUpdateResponse:
            return await self._ask(stub.FinishWeightUpdate, request, timeout_s=_TIMEOUT_S)  # type: ignore[no-any-return] # stubs have no types

        async def whole_update() -> pb.FinishWeightUpdateResponse:
            await self._check_one(stub, _update_from(path))
            return await finish()

        return await self._patiently(finish if is_checked else whole_update, whole_update)

    async def _until_there(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a call that may be repeated; await the return of an engine core that is lost."""
        return await self._patiently(call, call)

    async def _patiently(self, call: Callable[[], Awaitable[T]], again: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a call; if an engine core or a worker is lost meanwhile, await its return and call `again`."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return await call()
            except Unavailable as error:
                if time.monotonic() > deadline:
                    raise
                log.warning("weights.repeated", error=error.message)
            call = again
            await asyncio.sleep(_RETRY_S)

    async def _check(self, stub: Stub, request: pb.UpdateWeightsRequest) -> None:
        async def check() -> None:
            await self._ask(stub.UpdateWeights, request, timeout_s=_CHECK_TIMEOUT_S)

        await self._patiently(check, lambda: self._check_one(stub, request))

    async def _start_one(self, stub: Stub) -> None:
        await self._ask(stub.StartWeightUpdate, pb.StartWeightUpdateRequest())

    async def _check_one(self, stub: Stub, request: pb.UpdateWeightsRequest) -> None:
        await self._start_one(stub)
        await self._ask(stub.UpdateWeights, request, timeout_s=_CHECK_TIMEOUT_S)

    async def _undo(self, stub: Stub, before: pb.EngineInfo) -> None:
        """Give an engine core the weights that it had before."""
        await self._check_one(stub, _update_from(before.weights_path or before.model))
        await self._ask(stub.FinishWeightUpdate, pb.FinishWeightUpdateRequest(), timeout_s=_TIMEOUT_S)
        await self._ask(stub.UpdateWeightVersion, pb.UpdateWeightVersionRequest(weight_version=before.weight_version))

    async def _info(self, stub: Stub) -> pb.EngineInfo:
        answer = await self._ask(stub.GetInfo, pb.EngineCoreAdminServiceGetInfoRequest())
        return answer.info  # type: ignore[no-any-return]

    async def _all(self, call: Callable[[Stub], Awaitable[Any]]) -> list[Any]:
        """Call a method of every engine core at the same time; raise the first error after the end of all."""
        answers = await asyncio.gather(*map(call, self._stubs()), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers


def _checked_path(infos: Sequence[pb.EngineInfo], expected: str) -> str:
    """Return the path of the weights that engine cores have checked; `expected` empty: whichever it is."""
    paths = sorted({expected, *(info.checked_weights_path for info in infos)} - {""})
    if not paths:
        raise FailedPrecondition("There are no weights to apply; call StartWeightUpdate and UpdateWeights first.")
    if len(paths) > 1:
        named = ", ".join(path[:200] for path in paths)
        raise FailedPrecondition(f"Several updates of the weights were ordered at the same time ({named}); start again.")
    return paths[0]


def _update_from(path: str) -> pb.UpdateWeightsRequest:
    return pb.UpdateWeightsRequest(update_info_json=json.dumps({"path": path}))


def checked_version(version: object) -> str:
    """Return the name of weights in messages. Raises InvalidRequest unless it is a text of limited length."""
    if not isinstance(version, str):
        raise InvalidRequest(f"weight_version must be a text, got {type(version).__name__}.", field="weight_version")
    if len(version) > _MOST_VERSION_CHARS:
        text = f"weight_version may have {_MOST_VERSION_CHARS} characters, got {len(version)}."
        raise InvalidRequest(text, field="weight_version")
    return "" if version == UNNAMED else version
