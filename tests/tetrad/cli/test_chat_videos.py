"""`tetrad chat` with videos: a file goes with the next message, under the media type of its content."""

import base64

import pytest

from tests.tetrad.cli.test_chat import Client
from tests.video_files import video
from tetrad.cli.talk.commands import run_command
from tetrad.cli.talk.conversation import TalkConversation
from tetrad.cli.talk.video_file import VideoFile
from tetrad.services.errors import InvalidRequest


@pytest.fixture
def conversation():
    return TalkConversation(Client("Hello"), {"model": "m"})


def test_a_video_goes_with_the_next_message(conversation, tmp_path):
    path = tmp_path / "film.mp4"
    path.write_bytes(video(2))

    shown = run_command(f"/video {path}", conversation).shown
    conversation.say("What is it?", lambda _: None)

    assert shown == "Attached to the next message: film.mp4"
    url = f"data:video/mp4;base64,{base64.b64encode(path.read_bytes()).decode()}"
    parts = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    assert conversation.client.bodies[0]["messages"] == [{"role": "user", "content": parts}]


@pytest.mark.parametrize(
    ("codec", "form", "media_type"),
    [
        ("libx264", "mp4", "video/mp4"),
        ("libx264", "mov", "video/mp4"),
        ("libvpx-vp9", "webm", "video/webm"),
        ("libx264", "matroska", "video/webm"),
        ("mpeg4", "avi", "video/x-msvideo"),
        ("libx264", "mpegts", "video/mpeg"),
        ("libx264", "flv", "video/x-flv"),
    ],
)
def test_the_media_type_is_that_of_the_content(tmp_path, codec, form, media_type):
    path = tmp_path / "file"
    path.write_bytes(video(2, codec=codec, form=form))

    assert VideoFile.read(str(path)).media_type == media_type


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read: No such file"), (b"text", "is not a video in the format MP4")]
)
def test_a_file_that_is_no_video_is_refused(tmp_path, content, message):
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(InvalidRequest, match=message):
        VideoFile.read(str(path))
