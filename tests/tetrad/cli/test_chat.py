"""`tetrad chat` without a server: commands, messages of several lines, and the messages that a turn sends and keeps."""

import base64
import io
import sys

import pytest

from tetrad.cli.talk.commands import run_command
from tetrad.cli.talk.conversation import Message, TalkConversation, TurnSpeed
from tetrad.cli.talk.image_file import ImageFile
from tetrad.cli.talk.terminal import Terminal
from tetrad.services.errors import InvalidRequest


class Client:
    """A server that answers with these pieces; an exception among them is raised."""

    def __init__(self, *pieces):
        self.pieces, self.bodies = pieces, []

    def stream(self, path, body):
        self.bodies.append(body)
        for piece in self.pieces:
            if isinstance(piece, BaseException):
                raise piece
            yield {"choices": [{"delta": {"content": piece} if isinstance(piece, str) else piece}]}
        yield {"choices": [], "usage": {"completion_tokens": len(self.pieces)}}


@pytest.fixture
def conversation():
    return TalkConversation(Client("Hel", "lo"), {"model": "m"})


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "dot.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n and more")
    return path


def test_a_turn_sends_the_conversation_and_keeps_the_answer(conversation):
    heard = []
    run_command("/system Be brief.", conversation)

    speed = conversation.say("Hi", heard.append)
    conversation.say("Ho", heard.append)

    assert "".join(heard) == "HelloHello"
    assert speed.num_tokens == 2
    system = {"role": "system", "content": "Be brief."}
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Ho"}]
    assert conversation.client.bodies[1]["messages"] == [system, *turns]


def test_reasoning_is_passed_on_and_counts_for_the_speed_but_is_not_kept():
    client = Client({"reasoning": "Hm", "reasoning_content": "Hm"}, {"reasoning_content": "m."}, "Hello")
    conversation, heard, thought = TalkConversation(client, {}), [], []

    speed = conversation.say("Hi", heard.append, thought.append)

    assert ("".join(thought), "".join(heard)) == ("Hmm.", "Hello")
    assert conversation.turns == [Message("user", "Hi"), Message("assistant", "Hello")]
    assert speed.rest_s > 0


def test_a_terminal_shows_reasoning_apart_from_the_answer_and_a_pipe_only_the_answer(capsys, tmp_path):
    shown = []
    for is_interactive in (True, False):
        terminal = Terminal(tmp_path / "history")
        terminal.is_interactive = is_interactive
        terminal.show_reasoning("Hm.")
        terminal.show("Hel")
        terminal.show("lo")
        terminal.end_answer()
        shown.append(capsys.readouterr().out)

    assert shown == ["\x1b[2mHm.\x1b[0m\n\nHello\n", "Hello\n"]


def test_an_answer_that_is_ended_is_kept_as_far_as_it_came():
    conversation = TalkConversation(Client("Hel", KeyboardInterrupt()), {})

    with pytest.raises(KeyboardInterrupt):
        conversation.say("Hi", lambda _: None)

    assert conversation.turns == [Message("user", "Hi"), Message("assistant", "Hel")]


def test_a_message_without_an_answer_is_forgotten():
    conversation = TalkConversation(Client(ValueError()), {})

    with pytest.raises(ValueError):
        conversation.say("Hi", lambda _: None)

    assert conversation.turns == []


@pytest.mark.parametrize(
    ("line", "fields", "shown"),
    [
        ("/set temperature 0.5", {"temperature": 0.5}, "temperature = 0.5"),
        ("/set max-tokens 7", {"max_tokens": 7}, "max_tokens = 7"),
        ("/set stop END", {"stop": "END"}, 'stop = "END"'),
        ("/set model x", {}, "model cannot be set"),
        ("/set", {}, "No field is set."),
        ("/sat", {}, "There is no command /sat"),
    ],
)
def test_fields_are_set_by_a_command(conversation, line, fields, shown):
    assert shown in run_command(line, conversation).shown
    assert conversation.fields == {"model": "m", **fields}


def test_a_field_is_unset_by_its_name_alone(conversation):
    run_command("/set seed 3", conversation)

    assert run_command("/set seed", conversation).shown == "seed is unset."
    assert conversation.fields == {"model": "m"}


def test_retry_sends_the_last_message_again_and_clear_forgets(conversation):
    conversation.say("Hi", lambda _: None)

    assert run_command("/retry", conversation).again == "Hi"
    assert conversation.turns == []
    conversation.say("Hi", lambda _: None)
    run_command("/clear", conversation)
    assert conversation.turns == []
    assert run_command("/bye", conversation).ends


def test_the_system_message_is_shown_and_removed(conversation):
    run_command("/system Be brief.", conversation)

    assert run_command("/system", conversation).shown == "System message: Be brief."
    assert run_command("/system none", conversation).shown == "System message: none"
    assert conversation.system == ""


def test_an_image_goes_with_the_next_message_and_stays_in_the_conversation(conversation, picture):
    shown = run_command(f"/image {picture}", conversation).shown
    conversation.say("What is it?", lambda _: None)
    conversation.say("And?", lambda _: None)

    assert shown == "Attached to the next message: dot.png"
    url = f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    first, last = conversation.client.bodies
    assert first["messages"] == [{"role": "user", "content": parts}]
    assert [last["messages"][place]["content"] for place in (0, 2)] == [parts, "And?"]


def test_retry_sends_the_images_again(conversation, picture):
    run_command(f'/image "{picture}"', conversation)
    conversation.say("What is it?", lambda _: None)

    assert run_command("/retry", conversation).again == "What is it?"
    assert [each.name for each in conversation.attached] == ["dot.png"]


def test_images_of_a_refused_message_stay_attached(picture):
    conversation = TalkConversation(Client(InvalidRequest("temperature must be at least 0, got -1.")), {})
    run_command(f"/image {picture}", conversation)

    with pytest.raises(InvalidRequest):
        conversation.say("What is it?", lambda _: None)

    assert [each.name for each in conversation.attached] == ["dot.png"]
    assert not conversation.turns


def test_attached_images_are_removed_by_none_and_by_clear(conversation, picture):
    run_command(f"/image {picture}", conversation)
    assert run_command("/image none", conversation).shown == "Attached to the next message: none"

    run_command(f"/image {picture}", conversation)
    run_command("/clear", conversation)
    assert conversation.attached == []


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read: No such file"), (b"text", "is not an image in the format PNG")]
)
def test_a_file_that_is_no_image_is_not_attached(conversation, tmp_path, content, message):
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)

    assert message in run_command(f"/image {path}", conversation).shown
    assert conversation.attached == []


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"BM", "image/bmp"),
    ],
)
def test_the_media_type_is_that_of_the_content(tmp_path, data, media_type):
    path = tmp_path / "file.png"
    path.write_bytes(data)

    assert ImageFile.read(str(path)).media_type == media_type


def test_quotation_marks_hold_a_message_of_several_lines(monkeypatch, tmp_path):
    text = '"""one\ntwo\n"""\nthree\n"""four"""\n'
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    terminal = Terminal(tmp_path / "history")

    with terminal.opened():
        messages = [terminal.read_message() for _ in range(4)]

    assert messages == ["one\ntwo", "three", "four", None]
    assert not (tmp_path / "history").exists()


def test_speed_is_tokens_behind_the_first_one_a_second():
    assert str(TurnSpeed(11, 0.25, 2.0)) == "11 tokens, 5.0 tokens/s, first after 0.25 s"
    assert str(TurnSpeed(1, 0.25, 0.0)) == "1 tokens, first after 0.25 s"


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (b"RIFF\0\0\0\0WAVEfmt ", "wav"),
        (b"ID3\x04", "mp3"),
        (b"\xff\xfb\x90", "mp3"),
        (b"\xff\xf1\x50", "aac"),
        (b"fLaC", "flac"),
        (b"OggS", "ogg"),
        (b"\0\0\0\x20ftypM4A ", "m4a"),
    ],
)
def test_audio_goes_with_the_next_message(conversation, tmp_path, content, form):
    path = tmp_path / "song"
    path.write_bytes(content)

    shown = run_command(f"/audio {path}", conversation).shown

    assert shown == "Attached to the next message: song"
    data = base64.b64encode(content).decode()
    assert conversation.attached[0].part() == {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def test_a_file_that_is_no_audio_is_not_attached(conversation, tmp_path):
    path = tmp_path / "song"
    path.write_bytes(b"text")

    assert "is not audio in the format WAV" in run_command(f"/audio {path}", conversation).shown
    assert not conversation.attached
