"""A decoder that attends to an encoder's output gives transformers' log-probabilities, whatever runs beside it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.whisper_files import save_whisper
from tests.worker_svc.conftest import Driver
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import EncoderItem, MediaSpan, NewRequest, SamplingSpec, ScoreIds
from tetrad.worker_svc.devices.cpu_model import CpuModel
from tetrad.worker_svc.runner.token_times import token_times

LAYOUT = KvLayout(num_blocks=200, block_size=16, max_model_len=448, max_num_seqs=16, max_num_batched_tokens=1024)
SECONDS = 2
NUM_POSITIONS = 50 * SECONDS
PROMPT_SIZES = (4, 1, 37)
NUM_TOKENS = 12
ALL = SamplingSpec(temperature=0.0, num_logprobs=-1)


@dataclass(frozen=True)
class Case:
    """A model on the device, transformers' own, spectrograms, and prompts."""

    model: CpuModel
    reference: torch.nn.Module
    features: Mapping[str, np.ndarray]
    prompts: Mapping[int, list[int]]

    def driver(self, handles: list[int]) -> Driver:
        driver = Driver(self.model.make_runner(LAYOUT), LAYOUT)
        for handle in handles:
            driver.add(handle, self.prompts[handle], ALL, media=(span(str(handle)),))
        return driver

    @torch.inference_mode()
    def check(self, driver: Driver) -> None:
        """Check the greedy outputs and the log-probabilities of all requests."""
        for handle, request in driver.requests.items():
            features, ids = torch.from_numpy(self.features[str(handle)])[None], request.prompt + request.output[:-1]
            logits = self.reference(input_features=features, decoder_input_ids=torch.tensor([ids])).logits[0]
            expected = logits[len(request.prompt) - 1 :].log_softmax(-1)
            assert request.output == expected.argmax(-1).tolist()
            last = expected.numpy()[-len(request.logprobs) :]  # a resumed request has those of its last tokens
            for (token_ids, values, _), row in zip(request.logprobs, last, strict=True):
                np.testing.assert_allclose(values, row[token_ids], atol=1e-4)


@pytest.fixture(scope="module")
def case(load, tmp_path_factory) -> Case:
    directory = tmp_path_factory.mktemp("whisper")
    reference = save_whisper(directory, num_seconds=SECONDS)
    model, random = load(directory), np.random.default_rng(1)
    handles = range(len(PROMPT_SIZES))
    features = {str(handle): random.normal(0, 1, (80, 2 * NUM_POSITIONS)).astype(np.float32) for handle in handles}
    for name, values in features.items():
        model.media.encode(0, item(name, values), -1)
    prompts = {handle: random.integers(5, 250, size).tolist() for handle, size in enumerate(PROMPT_SIZES)}
    return Case(model, reference, features, prompts)


def span(identifier: str, **changes: object) -> MediaSpan:
    fields = {"modality": "audio", "offset": 0, "length": 0, "is_embed": None, "num_embeds": NUM_POSITIONS}
    return MediaSpan(identifier, **fields | changes)


def item(identifier: str, features: np.ndarray, num_embeds: int = NUM_POSITIONS) -> EncoderItem:
    return EncoderItem(identifier, "audio", {"input_features": features}, num_embeds)


def test_each_request_attends_to_its_own_audio(case):
    driver = case.driver([0, 1, 2])

    driver.generate(NUM_TOKENS)

    case.check(driver)
    assert len({tuple(request.output) for request in driver.requests.values()}) == len(PROMPT_SIZES)


def test_a_prompt_in_chunks(case):
    driver = case.driver([0, 1, 2])

    driver.generate(NUM_TOKENS, chunk=5)

    case.check(driver)


def test_alone_as_in_a_batch(case):
    together = case.driver([0, 1, 2])
    together.generate(NUM_TOKENS)

    for handle in together.requests:
        alone = case.driver([handle])
        alone.generate(NUM_TOKENS)

        assert alone.requests[handle].output == together.requests[handle].output
        for (ids, values, _), (its_ids, its_values, _) in zip(
            alone.requests[handle].logprobs, together.requests[handle].logprobs, strict=True
        ):
            np.testing.assert_allclose(values[np.argsort(ids)], its_values[np.argsort(its_ids)], atol=1e-5)


def test_after_a_preemption(case):
    driver = case.driver([0, 2])
    driver.generate(5)
    output = driver.remove(2).output
    driver.generate(6)

    resumed = driver.add(2, case.prompts[2], ALL, media=(span("2"),))
    resumed.output, resumed.num_tokens = output, len(resumed.prompt) + len(output)
    driver.generate(NUM_TOKENS)

    case.check(driver)


def test_drafts_attend_as_well(case):
    expected = case.driver([0])
    expected.generate(6)
    output = expected.requests[0].output
    driver = case.driver([0])
    driver.generate(1)

    result = driver.verify({0: [*output[1:3], 7]})

    assert result.token_ids.tolist() == output[1:4]


def test_a_plan_without_the_audio_is_refused(case):
    driver = Driver(case.model.make_runner(LAYOUT), LAYOUT)
    driver.add(0, [1, 2, 3], media=(span("unknown"),))

    with pytest.raises(InvalidRequest, match="attend to media item unknown, which is not encoded"):
        driver.step({0: 3})


@pytest.mark.parametrize(
    ("media", "error", "text"),
    [
        ((span("0"), span("1")), InvalidRequest, "A prompt of this model has one audio, not 2"),
        (
            (span("0", offset=1, length=2),),
            InvalidRequest,
            "2 tokens at 1 and 100 embeddings",
        ),
        ((span("0", num_embeds=50),), InvalidRequest, "0 tokens at 0 and 50 embeddings"),
        ((span("0", modality="image"),), Unsupported, "takes media of modality 'audio', not 'image'"),
    ],
)
def test_other_media_end_their_request(case, media, error, text):
    driver = Driver(case.model.make_runner(LAYOUT), LAYOUT)
    driver.add(0, [1, 2, 3], media=media)

    result = driver.runner.execute(driver.plan({0: 3}))

    [(handle, failure)] = result.failures
    assert handle == 0
    assert isinstance(failure, error)
    assert text in failure.message


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (item("a", np.zeros((80, 100), np.float32)), r"is float32 \[80, 100\]; the model takes float32 \[80, 200\]"),
        (item("a", np.zeros((80, 200))), r"is float64 \[80, 200\]"),
        (EncoderItem("a", "audio", {}, NUM_POSITIONS), "is none"),
        (item("a", np.zeros((80, 200), np.float32), 7), "has num_embeds 7; the model's encoder has 100 positions"),
        (item("a", np.full((80, 200), np.nan, np.float32)), "not finite"),
    ],
)
def test_features_that_cannot_be_encoded(case, wrong, text):
    with pytest.raises(Exception, match=text):
        case.model.media.encode(0, wrong, -1)


def test_warm_up_needs_no_audio(case):
    reported = []

    case.model.make_runner(LAYOUT).warm_up(lambda *parts: reported.append(parts))

    assert reported[-1][0] == reported[-1][1]


def times(num_positions: int, start: int = 4) -> SamplingSpec:
    return SamplingSpec(temperature=0.0, score_ids=ScoreIds(np.zeros((1, 1), np.int64), start, num_positions))


@pytest.mark.parametrize("chunk", [37, 36, 7, 5])
def test_tokens_have_the_same_times_in_chunks(case, chunk):
    found = []
    for size in (1000, chunk):
        driver = Driver(case.model.make_runner(LAYOUT), LAYOUT)
        driver.add(7, case.prompts[2], times(90), media=(span("2"),))
        while not driver.requests[7].output:
            found += driver.step({7: min(size, driver.remaining(7))}).prompt_scores

    [whole, in_chunks] = [each.scores[:, 0].tolist() for each in found]
    assert whole == in_chunks == sorted(whole)
    assert len(whole) == len(case.prompts[2]) - 5
    assert len(set(whole)) > 3
    assert whole[-1] < 90


def asking(num_positions: int, *media: MediaSpan) -> NewRequest:
    ids = np.arange(6)
    return NewRequest(1, "r", ids, 6, 0, 6, np.zeros((1, 1), np.int64), times(num_positions), media=media)


@pytest.mark.parametrize("num_positions", [0, NUM_POSITIONS + 1])
def test_times_beyond_the_audio_are_refused(case, num_positions):
    with pytest.raises(InvalidRequest, match=rf"num_positions must be in \[1, 100\], got {num_positions}"):
        token_times(case.model.media).check(asking(num_positions, span("2")))


def test_times_without_audio_are_refused(case):
    with pytest.raises(InvalidRequest, match="num_positions needs an item"):
        token_times(case.model.media).check(asking(5))


def test_a_model_of_text_has_no_times():
    with pytest.raises(Unsupported, match="num_positions is not supported"):
        token_times(None).check(asking(5))
