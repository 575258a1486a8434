"""/v1/messages/render: converts a conversation in Anthropic's form to token ids for /inference/v1/generate."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.messages.blocks import conversation_of
from tetrad.frontend.api.http.messages.params import message_params
from tetrad.frontend.api.http.messages.route import MessagesRoute
from tetrad.frontend.api.http.messages.router import MESSAGES_ERRORS
from tetrad.frontend.api.http.requests.body import read_prompt_body
from tetrad.frontend.api.http.requests.named import llm_of, request_id_of
from tetrad.frontend.api.http.scale_out.bodies import RenderMessagesRequest
from tetrad.frontend.api.http.scale_out.objects import RenderedRequest
from tetrad.frontend.api.http.scale_out.rendered_request import RENDERED_EXAMPLE, rendered_request
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.api.http.sse.streams import until_disconnected
from tetrad.frontend.chat.turns import prepare_turn

router = APIRouter(route_class=MessagesRoute)

_DOCS = documented(
    RenderMessagesRequest, answer=RenderedRequest, example=RENDERED_EXAMPLE, tag="tokens", error_form=MESSAGES_ERRORS
)


@router.post("/v1/messages/render", **_DOCS)
async def render_message(request: Request) -> Response:
    """Return a conversation in Anthropic's form as token ids, as a body of /inference/v1/generate."""
    body = await read_prompt_body(request, RenderMessagesRequest)
    llm, request_id = llm_of(request, body.model), f"chatcmpl-{request_id_of(request, body.request_id)}"
    conversation = conversation_of(body)
    params = message_params(llm, body, conversation)

    async def work() -> RenderedRequest:
        prompt, found = await prepare_turn(llm, conversation, params, llm.chat_formats)
        return await rendered_request(llm, body, prompt, found, request_id)

    return JsonResponse(await until_disconnected(request.receive, work()))
