"""The dataset random-mm: images, videos and audio as the options say, and options that are refused."""

import base64
import io
import wave
from collections import Counter

import pytest

from tetrad.cli.load.options import parse, plan_of
from tetrad.cli.load.random_media import Bucket, RandomMedia, buckets_of
from tetrad.services.errors import InvalidRequest

MIXED = [Bucket(4, 6, 1, 0.5), Bucket(8, 8, 3, 0.5)]


def parts_of(dataset, number=1, seed=3):
    """Return the media of each message."""
    return [prompt.fields["messages"][0]["content"][:-1] for prompt in dataset.prompts(number, seed)]


def dataset_of(*options):
    return plan_of(parse(["--dataset-name", "random-mm", "--input-len", "2", "--output-len", "3", *options])).dataset


def test_a_video_has_the_frames_of_its_bucket():
    [[part]] = parts_of(RandomMedia([Bucket(8, 8, 3)], 1, 1))

    head, *frames = part["video_url"]["url"].split(",")
    assert (part["type"], head) == ("video_url", "data:video/jpeg;base64")
    assert [base64.b64decode(frame)[:4] for frame in frames] == [b"\x89PNG"] * 3
    assert len(set(frames)) == 3


def test_audio_has_its_length():
    [[part]] = parts_of(RandomMedia([], 1, 1, num_items=0, num_audios=1, audio_seconds=0.25))

    with wave.open(io.BytesIO(base64.b64decode(part["input_audio"]["data"]))) as audio:
        assert (audio.getframerate(), audio.getnframes(), audio.getnchannels()) == (16_000, 4000, 1)


def test_kinds_are_chosen_by_weight_up_to_the_limit_of_each():
    messages = parts_of(RandomMedia(MIXED, 1, 1, num_items=4), number=50)

    counts = [Counter(part["type"] for part in message) for message in messages]
    assert {sum(count.values()) for count in counts} == {4}
    assert {count["video_url"] for count in counts} == {0, 1}


def test_a_message_has_fewer_items_if_all_kinds_have_reached_their_limits():
    messages = parts_of(RandomMedia(MIXED, 1, 1, num_items=4, limits={"image": 1, "video": 1}), number=20)

    assert {len(message) for message in messages} == {2}


def test_the_number_of_items_varies_within_its_ratio():
    messages = parts_of(RandomMedia([Bucket(2, 2)], 1, 1, num_items=2, range_ratio=0.5), number=60)

    assert {len(message) for message in messages} == {1, 2, 3}


def test_options_under_their_names_and_vllms():
    ours = dataset_of("--num-images", "2", "--bucket-config", "{(4, 6, 1): 1}", "--items-limit", '{"image": 2}')
    names = ("--random-mm-base-items-per-request", "2", "--random-mm-bucket-config", "{(4, 6, 1): 1, (9, 9, 2): 0.0}")
    vllms = dataset_of(*names, "--random-mm-limit-mm-per-prompt", '{"image": 2}', "--random-mm-num-mm-items-range-ratio", "0")

    assert ours == vllms == RandomMedia((Bucket(4, 6),), 2, 3, num_items=2, limits={"image": 2, "video": 1})


@pytest.mark.parametrize(
    ("options", "numbers"),
    [((), (1, 0)), (("--num-audios", "2"), (0, 2)), (("--num-audios", "1", "--num-images", "3"), (3, 1))],
)
def test_messages_have_one_image_unless_they_have_audio(options, numbers):
    dataset = dataset_of(*options)

    assert (dataset.num_items, dataset.num_audios) == numbers


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "must be like"),
        ("[1]", "must be like"),
        ("{(1, 2): 1}", "must be height, width and frames"),
        ("{(0, 2, 1): 1}", "must be height, width and frames"),
        ("{(2, 2, 1025): 1}", "must be height, width and frames"),
        ("{(2, 2, 1): -1}", "has the weight -1"),
        ("{(2, 2, 1): 'a'}", "has the weight 'a'"),
        ("{(2, 2, 1): 0}", "has no weight above 0"),
        ("{(2, 2, 1): 1e308, (3, 3, 1): 1e308}", "has weights whose sum is not finite"),
        ("{[1]: 1}", "must be like"),
        ("__import__('os')", "must be like"),
    ],
)
def test_other_buckets_are_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        buckets_of(text)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--bucket-config", "{(2, 2, 1): 1}", "--image-size", "4x4"), "leave --image-size out"),
        (("--num-images", "0"), "needs --num-images or --num-audios above 0"),
        (("--num-audios", "1", "--audio-seconds", "0"), "--audio-seconds must be more than 0"),
        (("--num-audios", "1", "--audio-seconds", "1e12"), "--audio-seconds must be at most 3600, got 1e[+]12"),
        (("--audio-seconds", "3"), "--audio-seconds needs --num-audios above 0"),
        (("--num-audios", "1", "--image-size", "4x4"), "--image-size needs --num-images above 0"),
        (("--num-audios", "1", "--bucket-config", "{(2, 2, 1): 1}"), "--bucket-config needs --num-images above 0"),
        (("--items-limit", '{"image": 0}'), "--items-limit allows none of the images and videos"),
    ],
)
def test_options_without_effect_or_media_are_refused(options, reason):
    with pytest.raises(InvalidRequest, match=reason):
        dataset_of(*options)


@pytest.mark.parametrize(
    "options",
    [
        ("--items-range-ratio", "1.5"),
        ("--items-limit", '{"smell": 1}'),
        ("--items-limit", '{"image": -1}'),
        ("--num-audios", "a"),
    ],
)
def test_wrong_values_are_refused_by_their_option(options, capsys):
    with pytest.raises(SystemExit):
        dataset_of(*options)

    assert "must" in capsys.readouterr().err
