"""MessagesRoute: gives the errors of a route Anthropic's form, and its answers the `request-id` header."""

from starlette.responses import Response

from tetrad.frontend.api.http.messages.errors import messages_error_response
from tetrad.frontend.api.http.requests.form_route import FormRoute
from tetrad.services.errors import TetradError


class MessagesRoute(FormRoute):
    """A route of the Messages API."""

    id_header = "request-id"

    def refusal(self, error: TetradError, request_id: str) -> Response:
        """Return the response to a request that failed."""
        return messages_error_response(error, request_id)
