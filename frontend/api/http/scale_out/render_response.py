"""/v1/responses/render: converts a request of the Responses API to token ids for /inference/v1/generate."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.requests.body import read_prompt_body
from tetrad.frontend.api.http.requests.named import llm_of, request_id_of
from tetrad.frontend.api.http.responses.inputs import conversation_behind, response_params
from tetrad.frontend.api.http.responses.service import ResponsesService
from tetrad.frontend.api.http.scale_out.bodies import RenderResponsesRequest
from tetrad.frontend.api.http.scale_out.objects import RenderedRequest
from tetrad.frontend.api.http.scale_out.rendered_request import RENDERED_EXAMPLE, rendered_request
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.api.http.sse.streams import until_disconnected
from tetrad.frontend.chat.turns import prepare_turn

router = APIRouter()

_DOCS = documented(
    RenderResponsesRequest, answer=RenderedRequest, example=RENDERED_EXAMPLE | {"request_id": "resp-9f2d"}, tag="tokens"
)


@router.post("/v1/responses/render", **_DOCS)
async def render_response(request: Request) -> Response:
    """Return the conversation that a response continues as token ids, as a body of /inference/v1/generate. Stores nothing."""
    body = await read_prompt_body(request, RenderResponsesRequest)
    llm, request_id = llm_of(request, body.model), f"resp-{request_id_of(request, body.request_id)}"
    service: ResponsesService = request.app.state.responses
    params = response_params(llm, body)
    conversation, _ = await conversation_behind(llm, service.store, body)

    async def work() -> RenderedRequest:
        prompt, found = await prepare_turn(llm, conversation, params, llm.chat_formats)
        return await rendered_request(llm, body, prompt, found, request_id)

    return JsonResponse(await until_disconnected(request.receive, work()))
