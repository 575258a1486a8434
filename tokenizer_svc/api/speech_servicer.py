"""Speech servicer: adds PrepareSpeech to the servicer of a tokenizer."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from tetrad.services.errors import Unsupported
from tetrad.services.observability.tracing import spanned
from tetrad.tokenizer_svc.api.servicer import TokenizerServicer
from tetrad.tokenizer_svc.api.speech_wire import decode_speech_request, encode_recording, encode_tasks
from tetrad.tokenizer_svc.speech.recordings import Recordings
from tetrad.v1 import tokenizer_pb2


class SpeechServicer(TokenizerServicer):
    """Serves one tokenizer, and the recordings of its model.

    Args:
        recordings: prepares recordings; owned by the caller. None: the model reads no speech.
        arguments, options: those of TokenizerServicer.
    """

    def __init__(self, *arguments: Any, recordings: Recordings | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._recordings = recordings
        if recordings is not None:
            self._info.speech_tasks.extend(encode_tasks(recordings.tasks))

    async def PrepareSpeech(
        self,
        request: tokenizer_pb2.PrepareSpeechRequest,
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[tokenizer_pb2.PrepareSpeechResponse]:
        """Send the facts of a recording, and its pieces with their prompts."""
        if self._recordings is None:
            raise Unsupported("The model does not read speech.")
        num_bytes = len(request.data)
        with self._pending.count(), self._pending.media.admit(num_bytes):
            with spanned(self._tracer, "prepare_speech", kind="server") as span:
                prepared = await self._recordings.prepare(decode_speech_request(request))
                span.set_attributes({"tetrad.pieces": len(prepared.pieces)})
            for response in encode_recording(prepared):
                yield response
