"""/v1/audio/transcriptions and /v1/audio/translations: return the text of a recording, in its own language or in English."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.audio.answer import SpeechAnswer
from tetrad.frontend.api.http.audio.bodies import TranscriptionForm, TranslationForm
from tetrad.frontend.api.http.audio.objects import Transcript, TranscriptChunk, VerboseTranscript
from tetrad.frontend.api.http.documentation.routes import documented, stream_of_chunks
from tetrad.frontend.api.http.documentation.schemas import either, struct_schema
from tetrad.frontend.api.http.requests.form import read_prompt_form
from tetrad.frontend.api.http.requests.multipart import MEDIA_TYPE
from tetrad.frontend.api.http.requests.named import llm_of, request_id_of
from tetrad.frontend.api.http.sse.streams import stream_response, until_disconnected

router = APIRouter()

_ANSWER = either(json=struct_schema(Transcript), verbose_json=struct_schema(VerboseTranscript))
_SUBTITLES = "1\n00:00:00,000 --> 00:00:02,000\nMary had a little lamb.\n"
_TRANSCRIPT = {"text": "Mary had a little lamb.", "usage": {"type": "duration", "seconds": 2}}
_TRANSLATION = {"text": "Mary had a little lamb."}
_STREAM = stream_of_chunks(TranscriptChunk)


@router.post(
    "/v1/audio/transcriptions",
    **documented(TranscriptionForm, answer=_ANSWER, example=_TRANSCRIPT, text=_SUBTITLES, events=_STREAM, body_type=MEDIA_TYPE),
)
async def create_transcription(request: Request) -> Response:
    """Write what is said in a recording. Long recordings are cut where they are quiet, and their pieces run together."""
    return await _answer(request, TranscriptionForm)


@router.post(
    "/v1/audio/translations",
    **documented(TranslationForm, answer=_ANSWER, example=_TRANSLATION, text=_SUBTITLES, events=_STREAM, body_type=MEDIA_TYPE),
)
async def create_translation(request: Request) -> Response:
    """Write in English what is said in a recording in another language."""
    return await _answer(request, TranslationForm)


async def _answer(request: Request, form: type[TranslationForm]) -> Response:
    body = await read_prompt_form(request, form)
    llm = llm_of(request, body.model)
    job = SpeechAnswer(llm, body, request_id_of(request, body.request_id))
    if body.stream:
        return stream_response(request, job.stream())
    return await until_disconnected(request.receive, job.answer())
