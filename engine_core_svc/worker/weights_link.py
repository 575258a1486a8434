"""Weights link: the weights that the ranks of a group have, and their replacement: on every rank, or on none.

Called by the worker link, which loads the model with them after each loss of a worker. The leader stores the last finished
update, so the next engine core goes on with it; if both end together, the update of `kept` is loaded, or without one the
model's own weights. Knows nothing of requests.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence

import grpc

from tetrad.engine_core_svc.worker.group import NewWeights, Weights
from tetrad.engine_core_svc.worker.rank_link import Info, RankLink, error_of
from tetrad.engine_core_svc.worker.together import together
from tetrad.engine_core_svc.worker.weights_file import KeptUpdate
from tetrad.services.errors import TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.v1 import types_pb2, worker_pb2

log = get_logger()


class WeightsLink:
    """The weights of a group.

    Args:
        ranks: the ranks, leader first.
        load_request: returns the request that loads the model with its own weights.
        kept: the last finished update, if the leader has none.

    Attributes:
        present: the weights after the last finished update.
    """

    def __init__(
        self,
        ranks: Sequence[RankLink],
        load_request: Callable[[], worker_pb2.LoadModelRequest],
        kept: KeptUpdate,
    ) -> None:
        self._ranks, self._load_request, self._kept = ranks, load_request, kept
        self._update = NewWeights("", "", ("",) * len(ranks))  # the update that `present` is from
        self._has_met = False
        self.present = Weights()

    def meet(self, infos: Sequence[Info]) -> None:
        """Adopt the finished update of the first leader that is met.

        Raises Unavailable if workers are to load the weights of an update, and one is of a release that cannot.
        """
        if not self._has_met:
            self._has_met = True
            self._adopt(infos)
        old = [info.version for info in infos if types_pb2.CAPABILITY_WEIGHT_UPDATE not in info.capabilities]
        if self.present.path and old:
            raise Unavailable(f"A worker of release {old[0]} cannot load the weights of the last update; upgrade it.")

    def _adopt(self, infos: Sequence[Info]) -> None:
        sources = [info.model.weights for info in infos]
        leader = sources[0]
        digests = tuple(each.files_digest if each.update_id == leader.update_id else "" for each in sources)
        found = (NewWeights(leader.path, leader.update_id, digests), leader.version)
        if not leader.path and not leader.version:
            found = self._kept.load(len(self._ranks)) or found
        self._update, version = found
        self.present = Weights(self._update.path, version)
        if self.present != Weights():
            log.info("weights.adopted", path=self.present.path, version=version)

    async def load(self) -> worker_pb2.ModelInfo:
        """Load the model with the present weights on every rank; return the leader's description of it.

        Raises Unavailable if weights of an update cannot be loaded any more: another update may bring others.
        """
        try:
            return await self._load(self._update, self.present.version)
        except grpc.RpcError as error:
            found = error_of(error)
            if not self.present.path or isinstance(found, Unavailable):
                raise
            raise Unavailable(f"The weights of the last update cannot be loaded: {found.message}") from error

    async def check(self, path: str) -> NewWeights:
        """Let every rank compare files with the model's; return the update that `replace` takes. Raises a rank's error."""
        request = worker_pb2.WorkerLifecycleServiceUpdateWeightsRequest(
            update_info_json=json.dumps({"path": path}), model=self._load_request()
        )
        answers = await together(*(rank.call("UpdateWeights", request, timeout_s=None) for rank in self._ranks))
        return NewWeights(path, uuid.uuid4().hex, tuple(answer.files_digest for answer in answers))

    async def replace(self, update: NewWeights, version: str) -> None:
        """Load new weights on every rank; no Execute stream may be open. After an error, every rank has those before.

        Raises Unavailable if a rank is lost, and the error of a rank that cannot load them.
        """
        try:
            await self._load(update, version)
        except grpc.RpcError as error:
            await self._restore()
            raise error_of(error) from error
        except TetradError:
            await self._restore()
            raise
        self._update, self.present = update, Weights(update.path, version)
        await self.name(version)

    async def name(self, version: str) -> None:
        """Name the present weights. A lost rank gets the name when it loads the model."""
        self.present = Weights(self.present.path, version)
        self._kept.save(self._update, version)
        request = worker_pb2.WorkerLifecycleServiceFinishWeightUpdateRequest(weight_version=version)
        # Members first: the leader's is the update that the next engine core adopts.
        for rank in reversed(self._ranks):
            try:
                await rank.call("FinishWeightUpdate", request)
            except TetradError as error:
                log.warning("weights.not_named", rank=rank.rank, error=error.message)

    async def _load(self, update: NewWeights, version: str) -> worker_pb2.ModelInfo:
        requests = [self._request(update, version, rank.rank) for rank in self._ranks]
        model, *_ = await together(*map(RankLink.load_model, self._ranks, requests))
        return model

    async def _restore(self) -> None:
        """Load the present weights again; a rank for which that fails loads them when it is connected again."""
        requests = [self._request(self._update, self.present.version, rank.rank) for rank in self._ranks]
        results = await asyncio.gather(*map(RankLink.load_model, self._ranks, requests), return_exceptions=True)
        log.warning("weights.restored", failed=sum(isinstance(result, BaseException) for result in results))

    def _request(self, update: NewWeights, version: str, rank: int) -> worker_pb2.LoadModelRequest:
        request = self._load_request()
        if update.path or version:
            request.weights.version = version
        if update.path:
            request.weights.path, request.weights.update_id = update.path, update.update_id
            request.weights.files_digest = update.files_digests[rank]
        return request
