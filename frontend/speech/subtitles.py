"""Subtitles: writes segments as SubRip (srt) and as WebVTT. Pure.

Sources: the W3C's WebVTT recommendation, section 4; OpenAI's whisper/utils.py for the spaces around texts.
"""

from collections.abc import Iterable

from tetrad.frontend.speech.segments import Segment

_ARROW = "-->"


def srt(segments: Iterable[Segment]) -> str:
    """Return segments in the form of SubRip files."""
    cues = (
        f"{number}\n{_time(each.start_s, ',')} {_ARROW} {_time(each.end_s, ',')}\n{_cue_text(each)}\n"
        for number, each in enumerate(segments, start=1)
    )
    return "\n".join(cues)


def vtt(segments: Iterable[Segment]) -> str:
    """Return segments in the form of WebVTT files."""
    cues = (f"{_time(each.start_s, '.')} {_ARROW} {_time(each.end_s, '.')}\n{_cue_text(each)}\n" for each in segments)
    return "\n".join(["WEBVTT\n", *cues])


def _cue_text(segment: Segment) -> str:
    """Return a segment's text on one line and without arrows, which would begin another cue."""
    return " ".join(segment.text.split()).replace(_ARROW, "->")


def _time(seconds: float, point: str) -> str:
    """Return a time as 01:02:03 with milliseconds behind `point`."""
    millis = round(seconds * 1000)
    minutes, millis = divmod(millis, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{millis // 1000:02}{point}{millis % 1000:03}"
