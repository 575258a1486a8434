"""ResponsesService: manages the stored and the running responses of one frontend, for all routes of the Responses API.

Reads are consistent with the store, which several frontends may share: a response is final after it has been saved as final.
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
        store: stores the responses.
    """

    def __init__(self, store: ResponseStore) -> None:
        self.store = store
        self.jobs = BackgroundJobs(store)

    @classmethod
    def of(cls, settings: FrontendSettings) -> Self:
        """Return the service that the settings define."""
        store = open_store(
            settings.responses_store,
            max_count=settings.responses_store_max_count,
            max_bytes=settings.responses_store_max_bytes,
            max_age_s=settings.responses_store_max_age_s,
        )
        return cls(store)

    async def response(self, response_id: str) -> Json:
        """Return the present state of a response; NotFound if it is not stored."""
        # Looked up before the store is read: if the job ends meanwhile, the stored state may be older than events already sent.
        job = self.jobs.running(response_id)
        try:
            stored = (await self.store.get(response_id)).response
        except Unavailable:
            # A response that this frontend generates can still be read.
            if job is None:
                raise
            return job.generation.events.response()
        if job is None or stored["status"] not in UNFINISHED:
            return stored
        if job.generation.events.is_final:
            return await self._settled(job)
        return job.generation.events.response()

    async def followable(self, response_id: str) -> BackgroundJob | None:
        """Return the job of a response whose events are kept; None: there is none. NotFound if it is not stored."""
        job = self.jobs.followable(response_id)
        try:
            await self.store.get(response_id)
        except Unavailable:
            if job is None:
                raise
        return job

    async def cancel(self, response_id: str) -> Json:
        """Cancel a response that is generated in the background; return its new state.

        Raises:
            NotFound: the response is not stored.
            InvalidRequest: it is not generated in the background.
            Unavailable: it was cancelled, but this could not be saved; or the store cannot be used.
        """
        job = self.jobs.running(response_id)
        if job is not None:
            decides = not job.generation.is_saving_final
            await job.cancel()
            if self._waits_to_be_saved(job):
                text = "The response was cancelled, but the store of responses cannot be used; the server's log has the reason."
                raise Unavailable(text)
            if decides and job.generation.saved is not None:
                return job.generation.saved  # it may have been deleted since, after it was cancelled
            return (await self.store.get(response_id)).response
        if not (await self.store.get(response_id)).response["background"]:
            raise InvalidRequest("Cannot cancel a synchronous response.", field="response_id")
        # Another frontend may be generating it: it stops soon, and its result is not stored.
        return (await self.store.cancel(response_id)).response

    async def _settled(self, job: BackgroundJob) -> Json:
        """Wait until a final response has been saved, so that all frontends agree, and return it; unsaved if saving failed."""
        await job.wait_settled()
        if self._waits_to_be_saved(job):
            return job.generation.events.response()
        return (await self.store.get(job.generation.id)).response

    def _waits_to_be_saved(self, job: BackgroundJob) -> bool:
        """Return whether a final response still has to be saved. A response that was deleted meanwhile does not."""
        return job.generation.is_unsaved and self.jobs.running(job.generation.id) is job

    async def close(self) -> None:
        """Stop all background generations and close the store."""
        await self.jobs.close()
        await self.store.close()
