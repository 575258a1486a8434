"""MediaLoader: reads the files of a request's media from base64, URLs and local files.

One for all models of a frontend: the limit of concurrent fetches holds for all of them. One event loop.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from tetrad.frontend.media.addresses import parse_networks
from tetrad.frontend.media.base64_text import check_size, decode_base64
from tetrad.frontend.media.items import AUDIO, IMAGE, VIDEO, MediaItem, MediaSource
from tetrad.frontend.media.local_files import read_local_file
from tetrad.frontend.media.settings import MediaSettings
from tetrad.frontend.media.uuids import salted
from tetrad.frontend.media.web_files import WebRules, fetch
from tetrad.frontend.net.together import all_of
from tetrad.services.errors import InvalidRequest, Overloaded
from tetrad.services.models.media_embeds import join_embeds
from tetrad.services.models.video_frames import MEDIA_TYPE as FRAMES_TYPE
from tetrad.services.models.video_frames import join_frames

_MAX_HEAD_CHARS = 256
"""Maximum number of characters of a data: URL before its comma."""
_MAX_FRAMES = 4096
"""Maximum number of a video's frames in a data: URL: each is decoded by itself."""
_MAX_TYPE_CHARS = 64
"""Number of characters of a media type that are passed on: errors name it, and clients and web servers may send any text."""


class MediaLoader:
    """The reader of media files.

    Args:
        settings: the operator's rules and limits.
    """

    def __init__(self, settings: MediaSettings) -> None:
        self._settings = settings
        rules = WebRules(
            settings.allowed_media_domains,
            parse_networks(settings.allowed_media_networks),
            settings.max_media_redirects,
            settings.max_media_bytes,
        )
        self._rules = {
            IMAGE: rules,
            AUDIO: replace(rules, max_bytes=settings.max_audio_bytes),
            VIDEO: replace(rules, max_bytes=settings.max_video_bytes),
        }
        self._patience = {
            IMAGE: (settings.media_fetch_timeout_s, "media_fetch_timeout_s"),
            AUDIO: (settings.audio_fetch_timeout_s, "audio_fetch_timeout_s"),
            VIDEO: (settings.video_fetch_timeout_s, "video_fetch_timeout_s"),
        }
        self._fetches = asyncio.Semaphore(settings.max_media_fetches)
        # Not the event loop's threads: a slow name, or a slow disk, would delay the other work that they do.
        self._threads = ThreadPoolExecutor(settings.max_media_fetches, thread_name_prefix="media")

    async def load(self, sources: Sequence[MediaSource], cache_salt: str = "") -> list[MediaItem]:
        """Return the files of the sources, in order.

        Args:
            sources: the media of one request.
            cache_salt: separates the names of items of different tenants.

        Raises:
            InvalidRequest: a source is not allowed, cannot be read, or is too large; the error names its field. Also if the
                files do not fit a message together.
            Overloaded: too many files are being fetched.
        """
        total = _Total(self._settings.max_message_bytes)
        return await all_of(self._item(source, cache_salt, total) for source in sources)

    def close(self) -> None:
        """End the threads that are idle; others end with their look-up or file."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _item(self, source: MediaSource, cache_salt: str, total: "_Total") -> MediaItem:
        data, media_type = await self._read(source)
        media_type = source.media_type or media_type
        total.add(len(data), source.where)
        return MediaItem(
            data=data,
            uuid=salted(source.uuid, cache_salt),
            media_type=media_type[:_MAX_TYPE_CHARS] if media_type.isprintable() else "",
            modality=source.modality,
            where=source.where,
            is_embeds=source.is_embeds,
        )

    async def _read(self, source: MediaSource) -> tuple[bytes, str]:
        """Return a file and its media type; an empty type is unknown, an empty file is known by its name."""
        if source.embeds:
            return await self._embeds(source), ""
        rules = self._rules[source.modality]
        if source.data is not None:
            check_size(len(source.data), source.where, rules.max_bytes, source.modality)
            return source.data, ""
        if source.base64:
            return await decode_base64(source.base64, source.where, rules.max_bytes, source.modality), ""
        if not source.url:
            return b"", ""
        scheme = source.url[:8].partition(":")[0].lower()
        if scheme == "data":
            return await _from_data_url(source, rules.max_bytes)
        async with self._fetching(source):
            if scheme == "file":
                read = partial(
                    read_local_file,
                    source.url,
                    source.where,
                    allowed=self._settings.allowed_local_media_path,
                    most=rules.max_bytes,
                    what=source.modality,
                )
                return await asyncio.get_running_loop().run_in_executor(self._threads, read), ""
            file = await fetch(source.url, source.where, rules, self._threads)
            return file.data, file.media_type

    async def _embeds(self, source: MediaSource) -> bytes:
        """Return the file of an item's embeddings. Only the size of the request and of a message limit them, as in vLLM."""
        most, files = self._settings.max_message_bytes, {}
        for name, tensor in source.embeds.items():
            where = f"{source.where}.{name}"
            files[name] = tensor if isinstance(tensor, bytes) else await decode_base64(tensor, where, most, name)
        return join_embeds(files)

    @contextlib.asynccontextmanager
    async def _fetching(self, source: MediaSource) -> AsyncIterator[None]:
        """Limit the number and the time of fetches."""
        where = source.where
        patience_s, option = self._patience[source.modality]
        try:
            async with asyncio.timeout(patience_s):
                await self._fetches.acquire()
        except TimeoutError:
            most = self._settings.max_media_fetches
            text = f"{most} files are being fetched, the limit (max_media_fetches); try again later."
            raise Overloaded(text, retry_after_s=patience_s) from None
        limit = asyncio.timeout(patience_s)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            text = f"{where}: Failed to fetch the {source.modality} within {patience_s:g} s ({option})."
            raise InvalidRequest(text, field=where, reason="MEDIA_FETCH_FAILED") from None
        finally:
            self._fetches.release()


async def _from_data_url(source: MediaSource, most: int) -> tuple[bytes, str]:
    """Return the file of a data: URL, and its media type. The frames of a video stand one behind another, as in vLLM."""
    url, where, what = source.url, source.where, source.modality
    comma = url.find(",", 0, _MAX_HEAD_CHARS)
    if comma < 0:
        text = f"{where}: the data: URL has no comma in its first {_MAX_HEAD_CHARS} characters."
        raise InvalidRequest(text, field=where)
    media_type, *parameters = url[len("data:") : comma].lower().split(";")
    if not parameters or parameters[-1].strip() != "base64":
        raise InvalidRequest(f"{where}: Only base64 data URLs are supported for now.", field=where)
    if what != VIDEO or media_type.strip() != FRAMES_TYPE:
        return await decode_base64(url[comma + 1 :], where, most, what), media_type.strip()
    num_frames = url.count(",", comma)
    if num_frames > _MAX_FRAMES:
        raise InvalidRequest(f"{where}: the video has {num_frames} frames; at most {_MAX_FRAMES} are taken.", field=where)
    check_size((len(url) - comma) // 4 * 3 - num_frames * 3, where, most, what)
    frames = [await decode_base64(frame, where, most, what) for frame in url[comma + 1 :].split(",")]
    return join_frames(frames, {}), FRAMES_TYPE


@dataclass(slots=True)
class _Total:
    """The size of one request's files together: they travel in one message."""

    most: int
    num_bytes: int = 0

    def add(self, num_bytes: int, where: str) -> None:
        self.num_bytes += num_bytes
        if self.num_bytes > self.most:
            text = f"{where}: the media of the request have at least {self.num_bytes} bytes together; the limit is {self.most}"
            raise InvalidRequest(f"{text} (max_message_bytes).", field=where, reason="MESSAGE_TOO_LARGE")
