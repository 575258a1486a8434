"""Subtitles: the forms of SubRip and WebVTT."""

from tetrad.frontend.speech.segments import Segment
from tetrad.frontend.speech.subtitles import srt, vtt

LATE = Segment(3599.9994, 3725.25, [1], -1.0, " over --> an\nhour ")


def test_srt_has_commas_in_its_times():
    assert srt([LATE]) == "1\n00:59:59,999 --> 01:02:05,250\nover -> an hour\n"


def test_vtt_has_points_in_its_times():
    assert vtt([LATE]) == "WEBVTT\n\n00:59:59.999 --> 01:02:05.250\nover -> an hour\n"


def test_nothing_said_is_no_cue():
    assert (srt([]), vtt([])) == ("", "WEBVTT\n")
