"""DetokenizeStream: manages the open handles of one Detokenize stream.

Called by the servicer on the event loop, one message at a time; knows no protobuf. A handle that cannot be served fails alone,
and stays failed until it is closed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tetrad.services.errors import AlreadyExists, InvalidRequest, NotFound, TetradError
from tetrad.tokenizer_svc.tokenizer.detokenizer import Detokenizer
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class OpenHandle:
    """A request to open a handle, at the start of a request's text or later.

    Args:
        context_token_ids: ids of the prompt's end, followed by those generated so far.
        num_generated: number of generated ids among them, at the end.
        num_chars_emitted: number of characters of the generated text that the client has already.
    """

    handle: int
    context_token_ids: Sequence[int]
    num_generated: int = 0
    num_chars_emitted: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


@dataclass
class Deltas:
    """The answer for one step: texts of handles, and errors of others."""

    handles: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    failures: list[tuple[int, TetradError]] = field(default_factory=list)


class DetokenizeStream:
    """Has one detokenizer per open handle."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._open: dict[int, Detokenizer] = {}
        self._carried: dict[int, str] = {}  # text of a resumed handle that the client does not have yet
        self._failed: dict[int, TetradError] = {}

    @property
    def num_open(self) -> int:
        """The number of open handles."""
        return len(self._open)

    def open(self, request: OpenHandle) -> None:
        """Open a handle. An error is kept as the answer to the handle's next Append, since an Open has no answer."""
        handle = request.handle
        if handle in self._open:
            self.close([handle])
            self._failed[handle] = AlreadyExists(f"Handle {handle} is open on this stream; close it first.")
            return
        try:
            self._open[handle], carried = self._resume(request)
        except TetradError as error:
            self._failed[handle] = error
            return
        self._failed.pop(handle, None)
        if carried:
            self._carried[handle] = carried

    def append(self, handles: Sequence[int], rows: Iterable[Sequence[int]], final_handles: Sequence[int] = ()) -> Deltas:
        """Return the text that the ids of one step complete.

        Args:
            handles: the handles, in the order of the returned deltas.
            rows: the ids of each handle.
            final_handles: handles that are flushed after their ids; one that is not in `handles` gets its own delta at the end.
        """
        deltas = Deltas()
        final = set(final_handles)
        for handle, token_ids in zip(handles, rows, strict=True):
            detokenizer = self._open.get(handle)
            if detokenizer is None:
                deltas.failures.append((handle, self._failure(handle)))
                continue
            try:
                text = detokenizer.append(token_ids)
            except TetradError as error:
                deltas.failures.append((handle, self._fail(handle, error)))
                continue
            if self._carried:
                text = self._carried.pop(handle, "") + text
            deltas.handles.append(handle)
            deltas.texts.append(text)
        if final:
            self._flush(final_handles, deltas)
        return deltas

    def close(self, handles: Iterable[int]) -> None:
        """Forget handles; unknown ones are ignored."""
        for handle in handles:
            self._open.pop(handle, None)
            self._carried.pop(handle, None)
            self._failed.pop(handle, None)

    def _flush(self, final_handles: Sequence[int], deltas: Deltas) -> None:
        # A handle that occurs twice in a step is flushed after its last row.
        position = {handle: i for i, handle in enumerate(deltas.handles)}
        answered = {handle for handle, _ in deltas.failures}
        for handle in dict.fromkeys(final_handles):
            detokenizer = self._open.get(handle)
            if detokenizer is None:
                if handle not in answered:
                    deltas.failures.append((handle, self._failure(handle)))
                continue
            try:
                text = detokenizer.flush()
            except TetradError as error:
                deltas.failures.append((handle, self._fail(handle, error)))
                continue
            if handle in position:
                deltas.texts[position[handle]] += text
            else:
                deltas.handles.append(handle)
                deltas.texts.append(self._carried.pop(handle, "") + text)

    def _resume(self, request: OpenHandle) -> tuple[Detokenizer, str]:
        """Return a detokenizer that has processed the context, and the generated text that the client does not have."""
        ids = request.context_token_ids
        num_prompt = len(ids) - request.num_generated
        if num_prompt < 0:
            raise InvalidRequest(f"num_generated is {request.num_generated}, but the context has only {len(ids)} tokens.")
        detokenizer = self._tokenizer.open_detokenizer(
            ids[:num_prompt],
            skip_special_tokens=request.skip_special_tokens,
            spaces_between_special_tokens=request.spaces_between_special_tokens,
        )
        text = detokenizer.append(ids[num_prompt:])
        if request.num_chars_emitted > len(text):
            raise InvalidRequest(
                f"num_chars_emitted is {request.num_chars_emitted}, but the generated tokens have {len(text)} characters."
            )
        return detokenizer, text[request.num_chars_emitted :]

    def _fail(self, handle: int, error: TetradError) -> TetradError:
        """Let a handle fail until it is closed; return the error."""
        self.close([handle])
        self._failed[handle] = error
        return error

    def _failure(self, handle: int) -> TetradError:
        return self._failed.get(handle) or NotFound(f"Handle {handle} is not open on this stream; open it first.")
