"""Recordings: has recordings of speech prepared for one model, within the operator's limits. Starts no requests."""

from tetrad.frontend.llm.served_model import ServedModel
from tetrad.frontend.media.speech import PreparedSpeech, Recording, SpeechTask
from tetrad.frontend.observability.metrics import FrontendMetrics, counting_errors
from tetrad.frontend.request.admission import Admission
from tetrad.frontend.request.deadlines import earliest_deadline, within
from tetrad.frontend.tokenizer.client import TokenizerClient
from tetrad.services.errors import InvalidRequest, Unsupported

_APIS = {SpeechTask.TRANSCRIBE: "Transcriptions", SpeechTask.TRANSLATE: "Translations"}


class Recordings:
    """The recordings of one model.

    Args:
        model: says what it makes of recordings.
        tokenizer: client of the tokenizer service.
        admission: limits the recordings in progress.
        metrics: count refused calls.
        max_bytes: maximum size of a file.
        timeout_s: maximum duration of a call in seconds; None: no limit.
    """

    def __init__(
        self,
        model: ServedModel,
        tokenizer: TokenizerClient,
        admission: Admission,
        metrics: FrontendMetrics,
        *,
        max_bytes: int,
        timeout_s: float | None,
    ) -> None:
        self.metrics = metrics
        self._model, self._tokenizer, self._admission = model, tokenizer, admission
        self._max_bytes, self._timeout_s = max_bytes, timeout_s

    @property
    def max_bytes(self) -> int:
        """The maximum size of a file."""
        return self._max_bytes

    def tasks(self) -> tuple[SpeechTask, ...]:
        """Return what the model makes of recordings."""
        return self._model.tokenizer.speech_tasks if self._model.transcribes else ()

    def check_task(self, task: SpeechTask) -> None:
        """Raise Unsupported if the model does not do a task."""
        if task not in self.tasks():
            raise Unsupported(f"The model does not support {_APIS[task]} API")

    def check_size(self, num_bytes: int) -> None:
        """Raise InvalidRequest for a file that is empty or too large."""
        if not num_bytes:
            raise InvalidRequest("The audio file is empty.", field="data")
        if num_bytes > self._max_bytes:
            text = f"Maximum file size exceeded: the audio file has at least {num_bytes} bytes; the limit is {self._max_bytes}"
            raise InvalidRequest(f"{text} (max_speech_bytes).", field="data")

    @counting_errors
    async def prepare(self, recording: Recording) -> PreparedSpeech:
        """Return a recording in pieces with their prompts.

        Raises:
            Unsupported: the model does not do the task.
            InvalidRequest: the file is too large or too long, or cannot be read; or the model does not know the language.
            Overloaded, DeadlineExceeded: as in AsyncLLM.add_request.
        """
        self.check_task(recording.task)
        self.check_size(len(recording.data))
        with self._admission.admit(num_tokens=1):
            async with within(earliest_deadline(self._timeout_s)):
                return await self._tokenizer.prepare_speech(recording)
