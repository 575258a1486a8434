"""Start: has a recording prepared, finds its language if need be, and starts a request for each of its pieces."""

from dataclasses import dataclass, replace

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.media.speech import LanguageDetection, PreparedSpeech, Recording, SpeechPiece, SpeechRules, SpeechTask
from tetrad.frontend.request.admission import Ticket
from tetrad.frontend.request.new_request import RequestOptions
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.speech.transcription import Transcription
from tetrad.frontend.speech.word_times import NO_WORD_TIMES, WordFinder, WordTimes, check_word_times
from tetrad.services.errors import FailedPrecondition, InvalidRequest

_ENGLISH = "en"
_SCORES, _LOGPROBS = "prompt_scores", "raw_logprobs"
_CUT_OFF_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOptions:
    """How a recording is transcribed.

    Attributes:
        params: the sampling parameters of each piece.
        with_segments: return segments with their times; text then comes with whole pieces.
        with_words: return words with their times, too; it needs with_segments.
        model: the requested model's name, which may be an adapter's; empty: the model's own.
        priority: a larger value is more urgent.
        cache_salt: separates the prefix caches of different tenants.
    """

    params: SamplingParams
    with_segments: bool = False
    with_words: bool = False
    model: str = ""
    priority: int = 0
    cache_salt: str = ""


async def start_transcription(llm: AsyncLLM, recording: Recording, options: SpeechOptions, request_id: str) -> Transcription:
    """Start to transcribe a recording, and return the running transcription, which the caller closes.

    Args:
        llm: the model.
        recording: the recording.
        options: how it is transcribed.
        request_id: the caller's id.

    Errors: see Recordings.prepare and AsyncLLM.add_request; InvalidRequest also for several outputs or log-probabilities.
    """
    return await _Start(llm, recording, options, request_id).run()


@dataclass(slots=True)
class _Start:
    """The start of one transcription; see `start_transcription`."""

    llm: AsyncLLM
    recording: Recording
    options: SpeechOptions
    request_id: str

    async def run(self) -> Transcription:
        _check_params(self.options.params)
        if self.options.with_words:
            check_word_times(self.llm)
        speech = await self.llm.recordings.prepare(self.recording)
        if speech.detection is not None:
            speech = await self._with_language(speech, speech.detection)
        language = self._written_language(speech)
        words = self._word_times(speech, language)
        try:
            streams = await self._start_all(speech)
        except BaseException:
            words.close()
            raise
        with_segments = self.options.with_segments
        return Transcription(self.llm, speech, streams, words, with_segments=with_segments, written_language=language)

    def _word_times(self, speech: PreparedSpeech, language: str) -> WordFinder:
        if not self.options.with_words:
            return NO_WORD_TIMES
        tickets = self.llm.admission.admit_all(1, [len(piece.token_ids) for piece in speech.pieces])
        return WordTimes(self.llm, self.request_id, self._request_options(), tickets, language)

    def _written_language(self, speech: PreparedSpeech) -> str:
        is_translated = self.recording.task is SpeechTask.TRANSLATE
        return self.recording.to_language or (_ENGLISH if is_translated else speech.language)

    async def _with_language(self, speech: PreparedSpeech, detection: LanguageDetection) -> PreparedSpeech:
        """Return the recording with the language of its first piece, and with this language's token in the prompts."""
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            allowed_token_ids=list(detection.languages),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = _prompt(detection.prompt_token_ids, speech.pieces[0])
        stream = await self._add(f"{self.request_id}-language", prompt, params)
        try:
            output = await stream.get()
        finally:
            stream.close()
        if not output.outputs[0].token_ids:
            raise FailedPrecondition("The request was aborted.")
        [token_id] = output.outputs[0].token_ids
        return PreparedSpeech(
            speech.duration_s,
            detection.languages[token_id],
            None,
            speech.first_timestamp_id,
            speech.timestamp_step_s,
            tuple(_with_token(piece, token_id) for piece in speech.pieces),
            speech.rules,
            speech.silence,
        )

    async def _start_all(self, speech: PreparedSpeech) -> list[OutputStream]:
        """Start the requests of all pieces: all of them or, after an error, none."""
        pieces, llm = speech.pieces, self.llm
        params = self.options.params.clone()
        params.output_kind = RequestOutputKind.DELTA
        if self.options.with_segments:
            params.logprobs, params.detokenize = 0, False
            self._ask_for_silence(params, speech)
        tickets = llm.admission.admit_all(1, [len(piece.token_ids) for piece in pieces])
        streams: list[OutputStream] = []
        try:
            for place, (piece, ticket) in enumerate(zip(pieces, tickets, strict=True)):
                request_id = self.request_id if len(pieces) == 1 else f"{self.request_id}-{place}"
                streams.append(
                    await self._add(request_id, _prompt(piece.token_ids, piece), params, ticket, _rules_of(speech, piece))
                )
        except BaseException:
            for stream in streams:
                stream.close()
            for ticket in tickets:
                ticket.release()
            raise
        return streams

    def _ask_for_silence(self, params: SamplingParams, speech: PreparedSpeech) -> None:
        """Let the requests of pieces return the log-probability of silence, if the model and the engine cores have it."""
        silence, info = speech.silence, self.llm.engine_info
        has_logprobs = _SCORES in info.capabilities and info.logprobs_mode == _LOGPROBS
        # Of a model of one language, the start is the last token, which has no row.
        if silence is not None and has_logprobs and silence.position + 1 < len(speech.pieces[0].token_ids):
            params.prompt_logprob_token_ids, params.prompt_logprob_start = [silence.token_id], silence.position

    async def _add(
        self,
        request_id: str,
        prompt: TokensPrompt,
        params: SamplingParams,
        ticket: Ticket | None = None,
        rules: SpeechRules | None = None,
    ) -> OutputStream:
        # The scores of one id are this module's own, whatever the server's limit for clients is.
        own = RequestOptions(ticket=ticket, speech_rules=rules, max_logprobs=1)
        return await self.llm.add_request(request_id, prompt, params, **self._request_options() | own)

    def _request_options(self) -> RequestOptions:
        """Return the options of all requests of the recording."""
        options, lora = self.options, self.llm.model_names.lora_of(self.options.model)
        return RequestOptions(priority=options.priority, cache_salt=options.cache_salt, lora_request=lora)


def _check_params(params: SamplingParams) -> None:
    for name, wrong in (("n", params.n != 1), ("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if wrong:
            raise InvalidRequest(f"{name} is not supported for transcriptions.", field=name)


def _rules_of(speech: PreparedSpeech, piece: SpeechPiece) -> SpeechRules | None:
    """Return what the model may write about a piece; a sentence that begins half a second before its end may have no text."""
    if speech.rules is None or not speech.timestamp_step_s:
        return speech.rules
    written_before = max(0, int((piece.duration_s - _CUT_OFF_S) / speech.timestamp_step_s))
    return replace(speech.rules, written_before=written_before)


def _prompt(token_ids: list[int], piece: SpeechPiece) -> TokensPrompt:
    return TokensPrompt(prompt_token_ids=token_ids, mm_features=piece.features)


def _with_token(piece: SpeechPiece, token_id: int) -> SpeechPiece:
    """Return a piece with the token of a language in its prompt."""
    if piece.language_index is None:
        return piece
    ids = [*piece.token_ids[: piece.language_index], token_id, *piece.token_ids[piece.language_index :]]
    return SpeechPiece(piece.start_s, piece.duration_s, ids, None, piece.features)
