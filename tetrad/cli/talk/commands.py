"""Talk commands: runs the slash commands of the terminal chat, which change the conversation and return text to print."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tetrad.cli.talk.audio_file import AudioFile
from tetrad.cli.talk.conversation import MediaFile, TalkConversation
from tetrad.cli.talk.image_file import ImageFile
from tetrad.cli.talk.video_file import VideoFile
from tetrad.services.errors import InvalidRequest

_SETTABLE = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "repetition_penalty", "presence_penalty", "stop")

HELP = f"""\
/system TEXT     set the system message; without TEXT: show it; `none` removes it
/image PATH      attach an image to the next message; without PATH: show what is attached; `none` removes it
/audio PATH      attach audio, in the same way
/video PATH      attach a video
/set NAME VALUE  set a sampling field ({", ".join(_SETTABLE)}); without VALUE: unset it; without NAME: show all
/retry           answer the last message again
/clear           forget the conversation
/help            show this list
/bye             end; so does Ctrl-D
A line of three quotation marks begins and ends a message of several lines. Ctrl-C ends an answer."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command.

    Attributes:
        shown: text to print; empty: none.
        again: message to send; empty: none.
        ends: whether the chat ends.
    """

    shown: str = ""
    again: str = ""
    ends: bool = False


def run_command(line: str, conversation: TalkConversation) -> Done:
    """Run a line that starts with a slash; the result of an invalid line is the error text."""
    name, _, rest = line.strip().partition(" ")
    command = _COMMANDS.get(name)
    if command is None:
        return Done(f"There is no command {name}; /help lists them.")
    return command(conversation, rest.strip())


def _system(conversation: TalkConversation, text: str) -> Done:
    if text:
        conversation.system = "" if text == "none" else text
    return Done(f"System message: {conversation.system or 'none'}")


def _attach(read: Callable[[str], MediaFile], conversation: TalkConversation, path: str) -> Done:
    if path == "none":
        conversation.attached.clear()
    elif path:
        try:
            # Terminals put a dropped file's path in quotation marks.
            conversation.attached.append(read(path.strip("'\"")))
        except InvalidRequest as error:
            return Done(error.message)
    return Done(f"Attached to the next message: {', '.join(each.name for each in conversation.attached) or 'none'}")


def _set(conversation: TalkConversation, text: str) -> Done:
    name, _, value = text.partition(" ")
    if not name:
        shown = {each: conversation.fields[each] for each in _SETTABLE if each in conversation.fields}
        return Done("\n".join(f"{each} = {json.dumps(value)}" for each, value in shown.items()) or "No field is set.")
    name = name.replace("-", "_")
    if name not in _SETTABLE:
        return Done(f"{name} cannot be set; {', '.join(_SETTABLE)} can.")
    if not value.strip():
        conversation.fields.pop(name, None)
        return Done(f"{name} is unset.")
    conversation.fields[name] = _value(value.strip())
    return Done(f"{name} = {json.dumps(conversation.fields[name])}")


def _retry(conversation: TalkConversation, _: str) -> Done:
    again = conversation.retract()
    return Done(again=again) if again else Done("There is no message to answer again.")


def _clear(conversation: TalkConversation, _: str) -> Done:
    conversation.turns.clear()
    conversation.attached.clear()
    return Done("The conversation is empty.")


def _value(text: str) -> Any:
    """Return the value of a JSON text; any other text is a string."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


_COMMANDS: dict[str, Callable[[TalkConversation, str], Done]] = {
    "/system": _system,
    "/image": partial(_attach, ImageFile.read),
    "/audio": partial(_attach, AudioFile.read),
    "/video": partial(_attach, VideoFile.read),
    "/set": _set,
    "/retry": _retry,
    "/clear": _clear,
    "/help": lambda *_: Done(HELP),
    "/bye": lambda *_: Done(ends=True),
}
