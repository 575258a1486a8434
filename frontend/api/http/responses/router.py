"""/v1/responses: the routes that create, read, stream, cancel and delete responses of OpenAI's Responses API."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented, stream_of_events
from tetrad.frontend.api.http.requests.body import read_body, read_prompt_body
from tetrad.frontend.api.http.requests.named import llm_of, request_id_of
from tetrad.frontend.api.http.responses import documentation as docs
from tetrad.frontend.api.http.responses.background import MAX_FINISHED, BackgroundJob
from tetrad.frontend.api.http.responses.bodies import InputTokensRequest, ResponsesRequest
from tetrad.frontend.api.http.responses.encoding import encoded_events, response_of
from tetrad.frontend.api.http.responses.event_documentation import RESPONSE_EVENT
from tetrad.frontend.api.http.responses.generation import Generation
from tetrad.frontend.api.http.responses.inputs import conversation_behind
from tetrad.frontend.api.http.responses.objects import Json
from tetrad.frontend.api.http.responses.service import ResponsesService
from tetrad.frontend.api.http.responses.store import NoStore
from tetrad.frontend.api.http.schemas.errors import error_body
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.api.http.sse.named_events import named_event
from tetrad.frontend.api.http.sse.streams import EventStream, StreamForm, stream_response, until_disconnected
from tetrad.frontend.chat.turns import render_conversation
from tetrad.services.errors import InternalError, InvalidRequest, NotFound, TetradError
from tetrad.services.log import get_logger

log = get_logger()

router = APIRouter()

ResponseId = Annotated[str, Path(description="Id of a response.")]
_ERRORS = (400, 401, 404, 500, 503)
_STREAM = stream_of_events(RESPONSE_EVENT)
_CREATE = documented(ResponsesRequest, answer=docs.RESPONSE, example=docs.RESPONSE_EXAMPLE, events=_STREAM)
_READ = documented(answer=docs.RESPONSE, example=docs.RESPONSE_EXAMPLE, events=_STREAM, errors=_ERRORS)
_CANCEL = documented(answer=docs.RESPONSE, example=docs.RESPONSE_EXAMPLE, errors=_ERRORS)
_DELETE = documented(answer=docs.DELETED_RESPONSE, example=docs.DELETED_RESPONSE_EXAMPLE, errors=_ERRORS)
_LIST = documented(answer=docs.INPUT_ITEMS, example=docs.INPUT_ITEMS_EXAMPLE, errors=_ERRORS)


@router.post("/v1/responses", **_CREATE)
async def create_response(request: Request) -> Response:
    """Respond to an input, in the Responses API's form."""
    body = await read_prompt_body(request, ResponsesRequest)
    service: ResponsesService = request.app.state.responses
    generation = Generation(llm_of(request, body.model), service.store, body, request_id_of(request, body.request_id))
    if body.background:
        return await _in_background(request, service, generation, stream=bool(body.stream))
    if body.stream:
        return stream_response(request, _stream(generation), _FORM)
    return await until_disconnected(request.receive, _whole(generation))


@router.post(
    "/v1/responses/input_tokens",
    **documented(InputTokensRequest, answer=docs.RESPONSE_TOKENS, example=docs.RESPONSE_TOKENS_EXAMPLE),
)
async def count_input_tokens(request: Request) -> Response:
    """Return the number of tokens of an input."""
    body = await read_body(request, InputTokensRequest)
    llm = llm_of(request, body.model)
    store = _service(request).store
    llm.model_names.resolve(body.model)
    conversation, _ = await conversation_behind(llm, store, body)
    prompt = await render_conversation(llm, conversation)
    return JsonResponse({"object": "response.input_tokens", "input_tokens": len(prompt["prompt_token_ids"])})


@router.get("/v1/responses/{response_id}", **_READ)
async def get_response(
    request: Request,
    response_id: ResponseId,
    stream: Annotated[bool, Query(description="Follow a response that was created in the background as a stream.")] = False,
    starting_after: Annotated[int, Query(ge=-1, description="stream: leave out events up to this number.")] = -1,
) -> Response:
    """Return a response as it is now, or its events."""
    service = _service(request)
    if stream:
        job = await service.followable(response_id)
        if job is None:
            kept = f"those of the last {MAX_FINISHED} responses that it generated with background and stream"
            text = f"The events of response {response_id!r} are not here: a frontend keeps {kept}."
            raise InvalidRequest(text, field="stream")
        return _followed(request, job, starting_after + 1)
    return await response_of(await service.response(response_id))


@router.delete("/v1/responses/{response_id}", **_DELETE)
async def delete_response(request: Request, response_id: ResponseId) -> Response:
    """Delete a response; if it is being generated, cancel it."""
    service = _service(request)
    # In this order, a later save of the job does not restore the response, and the job continues if the store fails.
    await service.store.delete(response_id)
    service.jobs.drop(response_id)
    return JsonResponse({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel", **_CANCEL)
async def cancel_response(request: Request, response_id: ResponseId) -> Response:
    """Cancel a response that is generated in the background; a complete response does not change."""
    return await response_of(await _service(request).cancel(response_id))


@router.get("/v1/responses/{response_id}/input_items", **_LIST)
async def list_input_items(
    request: Request,
    response_id: ResponseId,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of items in a page.")] = 20,
    order: Annotated[Literal["asc", "desc"], Query(description="desc: the latest item first.")] = "desc",
    after: Annotated[str | None, Query(description="Id of the item before the page.")] = None,
) -> Response:
    """List the input items of a response and of the responses that it continues."""
    chain = await _service(request).store.chain(response_id)
    items = [item for stored in chain[:-1] for item in (*stored.input_items, *stored.response["output"])]
    # Clients may send an item again that the earlier responses have. It is listed once, since pages begin behind an id.
    unique: dict[str, Json] = {}
    for item in (*items, *chain[-1].input_items):
        unique.setdefault(item["id"], item)
    return JsonResponse(_page(list(unique.values()), limit, order, after))


def _service(request: Request) -> ResponsesService:
    service: ResponsesService = request.app.state.responses
    return service


async def _whole(generation: Generation) -> Response:
    """Return the whole response."""
    await generation.start()
    async with aclosing(generation.updates()) as updates:
        async for _ in updates:
            pass
    return await response_of(generation.events.response())


async def _stream(generation: Generation) -> AsyncIterator[bytes]:
    """Yield the response as events. An error before the first event is raised; a later one is an event."""
    begun = False
    try:
        await generation.start()
        async with aclosing(generation.updates()) as updates:
            async for events in updates:
                begun = True
                if events:
                    yield await encoded_events(events)
    except TetradError as error:
        if not begun:
            raise
        yield await encoded_events(await generation.fail(error))
    except Exception as error:
        if not begun:
            raise
        log.error("http.stream_failed", exc_info=error)
        failed = InternalError("The stream failed; the server's log has the details.")
        yield await encoded_events(await generation.fail(failed))


async def _in_background(request: Request, service: ResponsesService, generation: Generation, *, stream: bool) -> Response:
    if isinstance(service.store, NoStore):
        text = "background needs a store of responses, and this server was started without one."
        raise InvalidRequest(text, field="background")
    await until_disconnected(request.receive, generation.start())
    try:
        await generation.save()
    except BaseException:
        generation.close()
        raise
    job = service.jobs.start(generation, keep_events=stream)
    if stream:
        return _followed(request, job, 0)
    return JsonResponse(generation.events.response())


def _followed(request: Request, job: BackgroundJob, first: int) -> EventStream:
    keep_alive_s: float = request.app.state.settings.sse_keep_alive_s
    return EventStream(job.follow(first), form=_FORM, keep_alive_s=keep_alive_s, at_once=True)


def _failed(error: TetradError) -> bytes:
    """Return the event of an error before the response exists."""
    detail = error_body(error).error
    return named_event(
        {"type": "error", "code": detail.code, "message": detail.message, "param": detail.param, "sequence_number": 0}
    )


_FORM = StreamForm(closing=b"", failure=_failed)


def _page(items: list[Json], limit: int, order: str, after: str | None) -> dict[str, Any]:
    if order == "desc":
        items.reverse()
    if after is not None:
        place = next((place for place, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise NotFound(f"Item with id {after!r} not found.", field="after", reason="ITEM_NOT_FOUND")
        items = items[place + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }
