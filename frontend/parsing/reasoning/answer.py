"""Answer: reads the text behind reasoning, which some models put between tags, as in <answer>...</answer>.

An end tag belongs to the text unless the output ends behind it, or a call follows.
"""

from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.reasoning.citations import CitedText, PlainText
from tetrad.frontend.parsing.reasoning.writer import ReasoningScript, ReasoningWriter


def pass_answer(source: TextSource, writer: ReasoningWriter) -> Waiting[None]:  # noqa: ARG001 - a script
    """Read nothing: all text is content."""
    yield from ()


def wrapped_answer(
    opening: str, *closings: str, followers: tuple[str, ...], text: type[PlainText | CitedText] = PlainText
) -> ReasoningScript:
    """Return the script of answers between tags; the newlines within the tags do not belong to the answer.

    Args:
        opening: the tag before the answer, which may be missing.
        closings: the tags behind it; all but the first may be missing.
        followers: marks of calls, which may follow.
        text: passes the text of the answer on.
    """
    # Marks of citations in the arguments of a call are the call's own.
    ends = Markers(closings[0], *(followers if text is CitedText else ()))

    def read(source: TextSource, writer: ReasoningWriter) -> Waiting[None]:
        source.record()
        yield from skip_space(source)
        started = yield from source.skip(opening)
        space = source.recorded()
        if started:
            writer.end_reasoning()
        else:
            writer.content(space)
        newlines = _HeldNewlines(writer)
        answer = text(newlines.add)
        while (mark := (yield from ends.pass_text(source, answer.add))) and mark not in followers:
            source.record()
            for closing in closings:
                yield from source.skip(closing)
                yield from skip_space(source)
            tags = source.recorded()
            follows = yield from source.starts_with_any(followers)
            if follows or source.ends_within(*followers) or not (yield from source.more()):
                answer.end()
                return
            answer.add(tags)
        answer.end()
        newlines.end()

    return read


class _HeldNewlines:
    """Passes content on, and holds newlines back that may be its end."""

    def __init__(self, writer: ReasoningWriter) -> None:
        self._writer = writer
        self._held: list[str] = []

    def add(self, text: str) -> None:
        """Append text."""
        body = text.rstrip("\n")
        if body:
            self._writer.content("".join((*self._held, body)))
            self._held.clear()
        self._held.append(text[len(body) :])

    def end(self) -> None:
        """Finish: the text has ended without an end tag."""
        self._writer.content("".join(self._held))
