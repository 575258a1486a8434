"""Tagged values: reads a value between tags, in which nothing escapes the text of tags.

A value, such as a file that a coding model writes, may contain its own end tag. So an end tag ends a value only if a tag that
may follow it is next, or the output ends.
"""

from collections.abc import Sequence

from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.elements.typed_arguments import ValueWriter


def pass_tagged_value(source: TextSource, value: ValueWriter, end: str, followers: Sequence[str]) -> Waiting[bool]:
    """Pass a value to its writer, and read its end tag and the white space after it. False: the output ends in the value.

    Args:
        source: the text, which starts with the value.
        value: receives it, and is finished.
        end: the end tag.
        followers: the tags that may follow the end tag.
    """
    ends = Markers(end)
    while (yield from ends.pass_text(source, value.add)):
        source.record()
        yield from source.skip(end)
        yield from skip_space(source)
        text = source.recorded()
        follows = yield from source.starts_with_any(followers)
        if follows or source.ends_within(*followers) or not (yield from source.more()):
            value.end()
            return True
        value.add(text)
    value.cut()
    return False
