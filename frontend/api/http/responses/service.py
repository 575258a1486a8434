"""ResponsesService: the stored and the running responses of one frontend, for all routes of the Responses API.

Reads agree with the store, which several frontends may share: a response is final when it has been saved as final.
"""

from typing import Self

from tetrad.frontend.api.http.responses.background import BackgroundJob, BackgroundJobs
from tetrad.frontend.api.http.responses.sqlite_store import open_store
from tetrad.frontend.api.http.responses.store import UNFINISHED, Json, ResponseStore
from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import InvalidRequest, Unavailable


class ResponsesService:
    """The store and the jobs of one frontend.

    Args:
        store: where responses are kept.
    """

    def __init__(self, store: ResponseStore) -> None:
        self.store = store
        self.jobs = BackgroundJobs()

    @classmethod
    def of(cls, settings: FrontendSettings) -> Self:
        """Return the service that settings ask for."""
        store = open_store(
            settings.responses_store,
            max_count=settings.responses_store_max_count,
            max_bytes=settings.responses_store_max_bytes,
            max_age_s=settings.responses_store_max_age_s,
        )
        return cls(store)

    async def response(self, response_id: str) -> Json:
        """Return a response as it is now; NotFound if it is not kept."""
        try:
            stored = (await self.store.get(response_id)).response
        except Unavailable:
            # A response that is generated here can be read nevertheless.
            job = self.jobs.running(response_id)
            if job is None:
                raise
            return job.generation.events.response()
        job = self.jobs.running(response_id)
        if job is None or stored["status"] not in UNFINISHED:
            return stored
        if job.generation.events.is_final:
            return await self._settled(job)
        return job.generation.events.response()

    async def cancel(self, response_id: str) -> Json:
        """Cancel a response that is generated in the background; return it as it is then.

        Raises:
            NotFound: it is not kept.
            InvalidRequest: it is not generated in the background.
            Unavailable: it is cancelled, but that cannot be saved yet; or the store cannot be used.
        """
        job = self.jobs.running(response_id)
        if job is not None:
            await job.cancel()
            if self._waits_to_be_saved(job):
                text = "The response was cancelled, but the store of responses cannot be used; the server's log has the reason."
                raise Unavailable(text)
            return (await self.store.get(response_id)).response
        if not (await self.store.get(response_id)).response["background"]:
            raise InvalidRequest("Cannot cancel a synchronous response.", field="response_id")
        # Another frontend may generate it: that one's answer is then not kept.
        return (await self.store.cancel(response_id)).response

    async def _settled(self, job: BackgroundJob) -> Json:
        """Return a response that is final here when all other frontends see it so, too, if the store can be used."""
        await job.wait_settled()
        if self._waits_to_be_saved(job):
            return job.generation.events.response()
        return (await self.store.get(job.generation.id)).response

    def _waits_to_be_saved(self, job: BackgroundJob) -> bool:
        """Return whether the store failed to save a final response. One that was deleted meanwhile is not to be saved."""
        return job.generation.is_unsaved and self.jobs.running(job.generation.id) is job

    async def close(self) -> None:
        """End what is generated in the background and close the store."""
        await self.jobs.close()
        await self.store.close()
