"""Profiles of a running service: one at a time, in the configured directory, without remains."""

import json
import resource
from pathlib import Path

import pytest

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import AlreadyExists, FailedPrecondition, InvalidRequest, NotFound, Unavailable
from tetrad.services.observability.profiling import StepProfiler, profile_directory, stop_all
from tetrad.services.observability.trace import Point
from tetrad.worker_svc.config import WorkerSettings


class Kitchen:
    def cook(self):
        return "soup"


@pytest.fixture
def profiler(tmp_path):
    return StepProfiler("kitchen", tmp_path / "profiles", lambda: (Point(Kitchen, "cook", "cook"),))


def test_profiles_go_to_the_cache_directory_unless_a_setting_names_another(tmp_path, monkeypatch):
    """Not into the working directory, which may be a checkout."""
    monkeypatch.setenv("TETRAD_CACHE_DIR", str(tmp_path))

    for settings in (FrontendSettings(), EngineCoreSettings(), WorkerSettings()):
        assert profile_directory(settings.profile_dir) == tmp_path / "profiles"
    assert profile_directory("/mine") == Path("/mine")


def test_a_profile_has_the_calls_between_start_and_stop(profiler, tmp_path):
    cook = Kitchen.cook
    Kitchen().cook()

    profiler.start("noon")
    Kitchen().cook()
    path = profiler.stop()
    Kitchen().cook()

    events = json.loads(path.read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["cook"]
    assert path.parent == tmp_path / "profiles"
    assert path.name.startswith("noon-kitchen-")
    assert Kitchen.cook is cook


def test_a_second_profile_is_refused_while_one_is_recorded(profiler):
    profiler.start("")

    with pytest.raises(AlreadyExists, match="stop it first"):
        profiler.start("")

    profiler.stop()
    with pytest.raises(NotFound, match="start one first"):
        profiler.stop()


@pytest.mark.parametrize("prefix", ["../noon", "/noon", "no\0on", "\0", "no\non", "\ud800"])
def test_a_prefix_is_a_plain_file_name(profiler, prefix):
    with pytest.raises(InvalidRequest, match="must be a plain file name"):
        profiler.start(prefix)


def test_a_prefix_leaves_room_for_the_rest_of_the_name(profiler):
    with pytest.raises(InvalidRequest, match="has 256 bytes; at most 200"):
        profiler.start("𝔫" * 64)

    profiler.start("n" * 200)
    assert profiler.stop().exists()


def test_a_directory_that_cannot_be_made_is_told_before_anything_is_recorded(tmp_path):
    (tmp_path / "file").write_text("")
    profiler = StepProfiler("kitchen", tmp_path / "file" / "profiles", lambda: (Point(Kitchen, "cook", "cook"),))

    with pytest.raises(FailedPrecondition, match="profile_dir"):
        profiler.start("")


class Recorder:
    """What has something to stop: paths, or an error."""

    def __init__(self, answer):
        self.answer, self.is_asked = answer, False

    async def stop(self):
        self.is_asked = True
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_profile_that_cannot_be_written_is_told_and_leaves_nothing(profiler, tmp_path):
    """The limit on a file's size stands for a full disk."""
    profiler.start("")
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, most))
    try:
        with pytest.raises(FailedPrecondition, match="cannot be written: File too large"):
            profiler.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))

    assert not [*(tmp_path / "profiles").iterdir()]
    profiler.start("")
    assert profiler.stop().exists()


async def test_who_records_is_stopped_whoever_else_does_not(profiler):
    """A service that was started again does not know of the profile, but the others still record it."""
    assert await stop_all(profiler.stop_aside(), Recorder(["/a", "/b"]).stop()) == ["/a", "/b"]


async def test_an_error_is_told_when_all_have_been_stopped():
    last = Recorder(["/a"])

    with pytest.raises(Unavailable, match="away"):
        await stop_all(Recorder(NotFound("none")).stop(), Recorder(Unavailable("away")).stop(), last.stop())

    assert last.is_asked


async def test_nothing_to_stop_is_an_error(profiler):
    with pytest.raises(NotFound, match="start one first"):
        await stop_all(profiler.stop_aside(), Recorder(NotFound("none")).stop())
