"""Media options of `tetrad bench`: the options of the dataset random-mm, also under their names in `vllm bench serve`."""

import argparse
import json
import math
from collections.abc import Mapping
from typing import Any

from tetrad.cli.load.random_media import MOST_OF_A_KIND, MOST_PIXELS, Bucket, RandomMedia, buckets_of
from tetrad.services.errors import InvalidRequest

_IMAGE_SIZE = (256, 256)
_AUDIO_SECONDS, _MOST_AUDIO_SECONDS = 5.0, 3600.0
_SHOWN = json.dumps(dict(MOST_OF_A_KIND))
OF_MEDIA: Mapping[str, Any] = {
    "num_images": None,
    "image_size": None,
    "bucket_config": None,
    "items_range_ratio": 0.0,
    "items_limit": MOST_OF_A_KIND,
    "num_audios": 0,
    "audio_seconds": None,
}
"""Option of this dataset -> its value if it is unset."""


def add_media_options(group: Any) -> None:
    """Add the options of random-mm, also under their names in vLLM."""
    text = "Number of images, or of items of --bucket-config, in each message of random-mm. Unset: 1, or 0 with --num-audios."
    group.add_argument(
        "--num-images", "--random-mm-base-items-per-request", type=_natural, default=None, metavar="N", help=text
    )
    text = "Size of each image of random-mm, in pixels. Unset: 256x256."
    group.add_argument("--image-size", type=_size, default=None, metavar="WxH", help=text)
    text = "Images and videos of random-mm as {(height, width, frames): weight, ...}; an item of one frame is an image."
    group.add_argument(
        "--bucket-config", "--random-mm-bucket-config", type=_buckets, default=None, metavar="BUCKETS", help=text
    )
    text = "Part of --num-images by which the number differs at most from message to message, 0 to 1. Unset: 0."
    names = ("--items-range-ratio", "--random-mm-num-mm-items-range-ratio")
    group.add_argument(*names, type=_ratio, default=None, metavar="X", help=text)
    text = (
        f"Maximum number of images and of videos in a message of random-mm, as JSON. Unset: {json.dumps(dict(MOST_OF_A_KIND))}."
    )
    group.add_argument(
        "--items-limit", "--random-mm-limit-mm-per-prompt", type=_limits, default=None, metavar="JSON", help=text
    )
    text = "Number of audios of each message of random-mm. Unset: 0."
    group.add_argument("--num-audios", type=_natural, default=None, metavar="N", help=text)
    text = "Length of each audio of random-mm, in seconds, at most 3600. Unset: 5."
    group.add_argument("--audio-seconds", type=float, default=None, metavar="X", help=text)


def check_media_options(options: argparse.Namespace) -> None:
    """Raise InvalidRequest if options of random-mm exclude each other, have no effect, or ask for no media."""
    if options.dataset_name != "random-mm":
        return
    if options.bucket_config and options.image_size:
        text = "--bucket-config has the sizes of all items: leave --image-size out."
        raise InvalidRequest(text, field="image_size")
    has_images = _num_items(options) > 0
    if not has_images and not options.num_audios:
        raise InvalidRequest("random-mm needs --num-images or --num-audios above 0.", field="num_images")
    for name in ("image_size", "bucket_config"):
        if getattr(options, name) and not has_images:
            raise InvalidRequest(f"--{name.replace('_', '-')} needs --num-images above 0.", field=name)
    if not options.num_audios and not any(options.items_limit[each.modality] for each in _buckets_of(options)):
        raise InvalidRequest("--items-limit allows none of the images and videos of random-mm.", field="items_limit")
    if options.audio_seconds is None:
        return
    if not options.num_audios:
        raise InvalidRequest("--audio-seconds needs --num-audios above 0.", field="audio_seconds")
    if options.audio_seconds > _MOST_AUDIO_SECONDS:
        text = f"--audio-seconds must be at most {_MOST_AUDIO_SECONDS:g}, got {options.audio_seconds:g}."
        raise InvalidRequest(text, field="audio_seconds")


def media_dataset(options: argparse.Namespace) -> RandomMedia:
    """Return the dataset of parsed options."""
    return RandomMedia(
        _buckets_of(options),
        options.input_len,
        options.output_len,
        num_items=_num_items(options),
        range_ratio=options.items_range_ratio,
        limits=options.items_limit,
        num_audios=options.num_audios,
        audio_seconds=_AUDIO_SECONDS if options.audio_seconds is None else options.audio_seconds,
    )


def _num_items(options: argparse.Namespace) -> int:
    """Return the number of images and videos of a message."""
    return options.num_images if options.num_images is not None else 0 if options.num_audios else 1


def _buckets_of(options: argparse.Namespace) -> tuple[Bucket, ...]:
    width, height = options.image_size or _IMAGE_SIZE
    return options.bucket_config or (Bucket(height, width),)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 0")
    return int(text)


def _ratio(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 0 to 1")
    return number


def _limits(text: str) -> dict[str, int]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or not given.keys() <= MOST_OF_A_KIND.keys():
        raise argparse.ArgumentTypeError(f"{text[:80]!r} must be a JSON object such as {_SHOWN}")
    wrong = next((name for name, number in given.items() if type(number) is not int or number < 0), None)
    if wrong is not None:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} must have a whole number of at least 0 for {wrong}")
    return {**MOST_OF_A_KIND, **given}


def _buckets(text: str) -> tuple[Bucket, ...]:
    try:
        return buckets_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _size(text: str) -> tuple[int, int]:
    numbers = text.lower().split("x")
    if len(numbers) != 2 or not all(each.isdecimal() and 0 < int(each) <= MOST_PIXELS for each in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} must be a width and a height of 1 to {MOST_PIXELS} pixels, as 640x480")
    return int(numbers[0]), int(numbers[1])
