"""GivenOutputs: presents an existing final output as a stream, for code that reads the outputs of requests."""

from collections.abc import AsyncIterator

from tetrad.frontend.request.outputs import RequestOutput


class GivenOutputs:
    """The output stream of a finished request.

    Args:
        output: the complete output.
    """

    def __init__(self, output: RequestOutput) -> None:
        self._output = output
        self.predicted_ids: list[int] = []

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's ids; empty if unknown."""
        return self._output.prompt_token_ids

    @property
    def prompt(self) -> str | None:
        """The prompt's text, if known."""
        return self._output.prompt

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        yield self._output

    def close(self) -> None:
        """Do nothing: no request is running."""
