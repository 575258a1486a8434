"""TalkConversation: keeps the messages and sampling fields of a chat, and runs its turns with the server."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tetrad.cli.http_client import HttpClient
from tetrad.cli.talk.audio_file import AudioFile
from tetrad.cli.talk.image_file import ImageFile
from tetrad.cli.talk.video_file import VideoFile

MediaFile = ImageFile | AudioFile | VideoFile
OnPiece = Callable[[str], None]
"""Takes a new piece of a text."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the chat. Only the user's messages have media."""

    role: str
    text: str
    media: tuple[MediaFile, ...] = ()

    def body(self) -> dict[str, Any]:
        """Return the message in OpenAI's form. Media precede the text, as models are trained."""
        if not self.media:
            return {"role": self.role, "content": self.text}
        return {"role": self.role, "content": [*(each.part() for each in self.media), {"type": "text", "text": self.text}]}


@dataclass(frozen=True, slots=True)
class TurnSpeed:
    """The speed of an answer.

    Attributes:
        num_tokens: number of generated tokens, as counted by the server.
        first_s: seconds to the first piece, of the reasoning or of the answer.
        rest_s: seconds from the first piece to the last.
    """

    num_tokens: int
    first_s: float
    rest_s: float

    def __str__(self) -> str:
        rate = f", {(self.num_tokens - 1) / self.rest_s:.1f} tokens/s" if self.num_tokens > 1 and self.rest_s > 0 else ""
        return f"{self.num_tokens} tokens{rate}, first after {self.first_s:.2f} s"


def _ignore(piece: str) -> None:
    del piece


@dataclass
class TalkConversation:
    """A conversation with a server's model.

    Args:
        client: client of the server.
        fields: fields of each request besides its messages.
        system: the system message; empty: none.
        turns: the messages so far.
        attached: images, audio and videos of the next message.
    """

    client: HttpClient
    fields: dict[str, Any]
    system: str = ""
    turns: list[Message] = field(default_factory=list)
    attached: list[MediaFile] = field(default_factory=list)

    def say(self, text: str, on_text: OnPiece, on_reasoning: OnPiece = _ignore) -> TurnSpeed:
        """Send a message with the attached media, and pass on the answer as it arrives.

        After an interrupt, the conversation keeps the received part. Without an answer, it forgets the message, and the media
        stay attached. It never keeps the model's reasoning: chat templates leave out that of earlier turns.

        Args:
            text: the message.
            on_text: called with each new piece of the answer.
            on_reasoning: called with each new piece of the model's reasoning, which precedes the answer.
        """
        self.turns.append(Message("user", text, tuple(self.attached)))
        self.attached.clear()
        started = last = time.monotonic()
        first: float | None = None
        num_tokens = 0
        answer: list[str] = []
        try:
            for event in self.client.stream("/v1/chat/completions", self._body()):
                for choice in event.get("choices") or ():
                    reasoning, delta = _pieces_of(choice.get("delta") or {})
                    if reasoning or delta:
                        last = time.monotonic()
                        first = first or last
                    if reasoning:
                        on_reasoning(reasoning)
                    if delta:
                        answer.append(delta)
                        on_text(delta)
                num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
        finally:
            if answer:
                self.turns.append(Message("assistant", "".join(answer)))
            else:
                self.attached[:0] = self.turns.pop().media
        first = first or last
        return TurnSpeed(num_tokens, first - started, last - first)

    def retract(self) -> str:
        """Remove the last message and its answer, attach its media again, and return its text; empty if there is none."""
        while self.turns:
            turn = self.turns.pop()
            if turn.role == "user":
                self.attached[:0] = turn.media
                return turn.text
        return ""

    def _body(self) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, *(turn.body() for turn in self.turns)]
        return {**self.fields, "messages": messages, "stream_options": {"include_usage": True}}


def _pieces_of(delta: dict[str, Any]) -> tuple[str, str]:
    """Return the new reasoning and the new text; older servers call the reasoning `reasoning_content`."""
    return delta.get("reasoning") or delta.get("reasoning_content") or "", delta.get("content") or ""
