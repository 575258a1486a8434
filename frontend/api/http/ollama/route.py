"""OllamaRoute: answers errors of a route in Ollama's form."""

from starlette.responses import Response

from tetrad.frontend.api.http.ollama.errors import ollama_error_response
from tetrad.frontend.api.http.requests.form_route import FormRoute
from tetrad.services.errors import TetradError


class OllamaRoute(FormRoute):
    """A route of Ollama's API."""

    def refusal(self, error: TetradError, request_id: str) -> Response:  # noqa: ARG002 - the body has no request id
        """Return the response to a failed request."""
        return ollama_error_response(error)
