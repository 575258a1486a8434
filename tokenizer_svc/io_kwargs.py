"""IoKwargs: the operator's setting of how media files are read, in vLLM's form (`--media-io-kwargs`). Knows values only."""

import json
from typing import Annotated

from pydantic import AfterValidator

from tetrad.services.settings import JsonObject

_NAMES = ("num_frames", "fps")


def _checked(text: str) -> str:
    """Return the text. Raises ValueError for modalities and values that have no effect."""
    for modality, settings in json.loads(text or "{}").items():
        if modality != "video":
            raise ValueError(f"has the modality {modality[:40]!r}; only files of 'video' are read in more than one way")
        if not isinstance(settings, dict):
            raise ValueError(f"must have an object for {modality}, got {settings!r:.40}")  # noqa: TRY004 - pydantic's error
        for name, value in settings.items():
            if name not in _NAMES:
                raise ValueError(f"sets {name[:40]!r} of {modality}; there are {', '.join(_NAMES)}")
            if type(value) not in ((int,) if name == "num_frames" else (int, float)) or not (value == -1 or value > 0):
                raise ValueError(f"must have a number above 0, or -1, for {name} of {modality}, got {value!r:.40}")
    return text


IoKwargs = Annotated[JsonObject, AfterValidator(_checked)]
"""Settings by modality, a JSON object as text."""
