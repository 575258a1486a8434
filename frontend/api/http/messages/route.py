"""MessagesRoute: answers errors of a route in Anthropic's form, and adds the header `request-id` to all answers."""

from starlette.responses import Response

from tetrad.frontend.api.http.messages.errors import messages_error_response
from tetrad.frontend.api.http.requests.form_route import FormRoute
from tetrad.services.errors import TetradError


class MessagesRoute(FormRoute):
    """A route of the Messages API."""

    id_header = "request-id"

    def refusal(self, error: TetradError, request_id: str) -> Response:
        """Return the response to a failed request."""
        return messages_error_response(error, request_id)
