"""Draft models and heads beside a model with states: they propose their own tokens, and change no output token."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch

from tests.eagle3_files import save_eagle3
from tests.mtp_files import QWEN, save_qwen_mtp
from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.families.gguf_files import write_gguf
from tests.worker_svc.families.test_wrappers import rename_tensors
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.runner.proposals import proposals_of
from tests.worker_svc.runner.test_draft_heads import K, MtpReference
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec

NUM_TOKENS = 20
SAMPLINGS = [
    SamplingSpec(temperature=0.0),
    SamplingSpec(temperature=0.0),
    SamplingSpec(seed=5),
    SamplingSpec(seed=6, temperature=0.8, top_k=20, top_p=0.9),
    SamplingSpec(temperature=0.0, presence_penalty=1.5, repetition_penalty=1.3),
]
FAMILIES = ["lfm2", "jamba", "granite_hybrid", "qwen3_next", "falcon_h1", "nemotron_h"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A draft model with attention alone: its directory, and transformers' own."""
    directory = tmp_path_factory.mktemp("small")
    return directory, save_tiny(directory, tiny_config("LlamaForCausalLM", hidden_size=64, num_attention_heads=4))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    save_family(directory, request.param)
    return directory


@pytest.fixture(scope="module", params=QWEN)
def qwen(request, tmp_path_factory):
    """A model with states and an MTP layer: its directory, and the layer's reference."""
    directory = tmp_path_factory.mktemp(request.param)
    return directory, MtpReference(*save_qwen_mtp(directory, request.param), is_qwen=True)


@pytest.fixture
def load(cpu):
    """Return a loader of a model, alone or with a drafter."""

    def load_path(path: Path, method: str = "", drafter: Path | None = None):
        return cpu.load_model(LoadRequest(str(path), path, draft_method=method, draft_path=drafter), lambda *_: None)

    return load_path


def driver_of(model, samplings: Sequence[SamplingSpec] = SAMPLINGS) -> Driver:
    size = max(group.block_size for group in model.kv_groups(16))
    layout = KvLayout(num_blocks=60, block_size=size, max_model_len=512, max_num_seqs=8, max_num_batched_tokens=512)
    return prompted(Driver(model.make_runner(layout), layout), samplings)


def prompted(driver: Driver, samplings: Sequence[SamplingSpec] = SAMPLINGS) -> Driver:
    """Add a request of each kind."""
    for handle, sampling in enumerate(samplings):
        driver.add(handle, range(20 + handle, 40 + 3 * handle), sampling)
    return driver


def drafted(drafting: Driver, expected: dict[int, list[int]], propose=None, num_tokens: int = NUM_TOKENS) -> int:
    """Generate with proposals, right and wrong drafts, and drafts cut short; return the number of compared proposals.

    Prompts are computed in two chunks. A request is preempted in between, and comes again with its output.
    """
    random, num_compared = Random(1), 0
    drafting.step(dict.fromkeys(drafting.requests, 9), num_spec_tokens=K)
    result = drafting.step({handle: drafting.remaining(handle) for handle in drafting.requests}, num_spec_tokens=K)
    number = 0
    while running := {handle: each for handle, each in drafting.requests.items() if len(each.output) < num_tokens}:
        number += 1
        found = proposals_of(result) if result.proposals is not None else {}
        drafts = {}
        for handle, request in running.items():
            if propose is not None and handle < 2 and handle in found:
                assert found[handle] == propose(request.prompt + request.output)[: len(found[handle])]
                num_compared += len(found[handle])
            room = min(-request.num_tokens % drafting.layout.block_size, num_tokens - 1 - len(request.output))
            right = expected[handle][len(request.output) :][:K]
            wrong = [*right[: random.randrange(3)], 7]
            drafts[handle] = random.choice([found.get(handle, []), right, wrong])[: max(room, 0)]
        result = drafting.verify(drafts, num_spec_tokens=K if random.random() < 0.8 else 0)
        if number == 4 and len(drafting.requests[1].output) < num_tokens:
            again = drafting.remove(1)
            drafting.add(1, again.prompt, again.sampling)
            request = drafting.requests[1]
            request.output, request.num_tokens = again.output, len(again.prompt) + len(again.output)
            result = drafting.step({1: drafting.remaining(1)}, num_spec_tokens=K)
    return num_compared


def check_tokens(drafting: Driver, plain: Driver, propose) -> None:
    expected = plain.generate(NUM_TOKENS)

    num_compared = drafted(drafting, expected, propose)

    assert {handle: each.output for handle, each in drafting.requests.items()} == expected
    assert num_compared > 20


def test_a_draft_model_proposes_its_tokens_and_changes_none_of_the_models(load, family, small):
    directory, reference = small

    @torch.inference_mode()
    def propose(tokens: list[int]) -> list[int]:
        ids = list(tokens)
        for _ in range(K):
            ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[-K:]

    check_tokens(driver_of(load(family, "draft_model", directory)), driver_of(load(family)), propose)


def test_an_mtp_layer_proposes_its_tokens_and_changes_none_of_the_models(load, qwen):
    path, reference = qwen

    check_tokens(driver_of(load(path, "mtp")), driver_of(load(path)), reference.propose)


@pytest.mark.parametrize("family", QWEN)
def test_an_mtp_layer_of_a_gguf_file_proposes_its_tokens(family, load, tmp_path):
    model, own = save_qwen_mtp(tmp_path, family)
    path = tmp_path / "model.gguf"
    # Embeddings and the output layer are those of the model.
    write_gguf(path, family, model, mtp={name: own[name] for name in own if "embed" not in name and "head.head" not in name})
    reference = MtpReference(model, own, is_qwen=True)

    check_tokens(driver_of(load(path, "mtp")), driver_of(load(path)), reference.propose)


def test_an_eagle3_head_changes_no_token_of_a_model_with_states(load, tmp_path):
    save_family(tmp_path / "target", "qwen3_next")
    head = save_eagle3(tmp_path / "head", eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    expected = driver_of(load(tmp_path / "target")).generate(NUM_TOKENS)
    drafting = driver_of(load(tmp_path / "target", "eagle3", head))

    drafted(drafting, expected)

    assert {handle: each.output for handle, each in drafting.requests.items()} == expected


def test_a_block_takes_the_memory_of_both_models(load, family, small):
    """A draft model's keys need as many tokens per block as the model's states do."""
    alone, both, drafter = load(family), load(family, "draft_model", small[0]), load(small[0])
    size = max(group.block_size for group in alone.kv_groups(16))

    sizes = [group.block_size_bytes for group in both.kv_groups(16)]

    added = drafter.kv_groups(size)[0].block_size_bytes
    assert sizes == [group.block_size_bytes + added for group in alone.kv_groups(16)]


def test_a_model_of_states_alone_is_refused_a_draft_model(load, tmp_path, small):
    save_family(tmp_path, "mamba2")

    with pytest.raises(ModelError, match=r"speculative_config.method: all layers of the target have states"):
        load(tmp_path, "draft_model", small[0])


def test_a_draft_model_with_states_is_refused(load, tmp_path, small):
    save_family(tmp_path, "lfm2")

    with pytest.raises(ModelError, match="all layers of the draft model must see all tokens"):
        load(small[0], "draft_model", tmp_path)


def test_a_model_without_an_mtp_layer_is_refused_mtp(load, family):
    with pytest.raises(ModelError, match=r"has no layer that predicts further tokens.*Qwen3-Next's shape with tensors mtp"):
        load(family, "mtp")


def test_an_mtp_layer_is_read_beside_the_text_part_of_a_model_that_reads_images(load, tmp_path):
    """The text model's tensors have another prefix there; those of the MTP layer stay."""
    reference = MtpReference(*save_qwen_mtp(tmp_path, "qwen3_5_moe"), is_qwen=True)
    rename_tensors(tmp_path, ("model.", "model.language_model."))
    text = json.loads((tmp_path / "config.json").read_text())
    whole = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole))

    check_tokens(driver_of(load(tmp_path, "mtp")), driver_of(load(tmp_path)), reference.propose)
