"""Tiny random checkpoints of every encoder family, as transformers writes them, with a WordPiece-like tokenizer."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    CamembertConfig,
    CamembertModel,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    DistilBertModel,
    GteConfig,
    GteForSequenceClassification,
    GteModel,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    ModernBertModel,
    NomicBertConfig,
    NomicBertForSequenceClassification,
    NomicBertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

VOCAB_SIZE = 128
_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{index}" for index in range(VOCAB_SIZE - 4))]
_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}
_SPECIAL = {"eos_token_id": 3, "bos_token_id": 2, "cls_token_id": 2, "sep_token_id": 3}
_DISTIL = {"vocab_size": VOCAB_SIZE, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 80}

ENCODERS: dict[str, tuple[type, type]] = {
    "bert": (BertConfig, BertModel),
    "roberta": (RobertaConfig, RobertaModel),
    "xlm-roberta": (XLMRobertaConfig, XLMRobertaModel),
    "camembert": (CamembertConfig, CamembertModel),
    "distilbert": (DistilBertConfig, DistilBertModel),
    "modernbert": (ModernBertConfig, ModernBertModel),
    "nomic-bert": (NomicBertConfig, NomicBertModel),
    "gte": (GteConfig, GteModel),
}
CLASSIFIERS: dict[str, tuple[type, type]] = {
    "bert": (BertConfig, BertForSequenceClassification),
    "roberta": (RobertaConfig, RobertaForSequenceClassification),
    "xlm-roberta": (XLMRobertaConfig, XLMRobertaForSequenceClassification),
    "distilbert": (DistilBertConfig, DistilBertForSequenceClassification),
    "modernbert": (ModernBertConfig, ModernBertForSequenceClassification),
    "nomic-bert": (NomicBertConfig, NomicBertForSequenceClassification),
    "gte": (GteConfig, GteForSequenceClassification),
    "modernbert-tokens": (ModernBertConfig, ModernBertForTokenClassification),
    "bert-tokens": (BertConfig, BertForTokenClassification),
}


def save_encoder(directory: Path, kinds: tuple[type, type], **config: object) -> PreTrainedModel:
    """Write a checkpoint with its tokenizer; return transformers' model."""
    make_config, make_model = kinds
    sizes = _DISTIL if make_config is DistilBertConfig else _SIZES
    if make_config is ModernBertConfig:
        sizes = _SIZES | {"num_hidden_layers": 4, "local_attention": 8, **_SPECIAL}
    torch.manual_seed(0)
    model = make_model(make_config(**{**sizes, **config})).eval()
    with torch.no_grad():  # random biases and norms, so that none may be left out
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(8)
    model.save_pretrained(directory)
    save_tokenizer(directory)
    return model


def ids_of(text: str) -> list[int]:
    """Return the ids of the toy tokenizer: word n is 4 + n."""
    cls, sep = _WORDS.index("[CLS]"), _WORDS.index("[SEP]")
    return [cls, *(4 + int(word[1:]) for word in text.split()), sep]


def save_sentence_encoder(
    directory: Path, *, max_seq_length: int | None = None, **config: object
) -> Callable[[str], npt.NDArray[np.float32]]:
    """Write a sentence-transformers model of BERT (mean, normalised); return what gives a text's embedding by transformers."""
    reference = save_encoder(directory, ENCODERS["bert"], **config)
    save_modules(directory, {"pooling_mode_mean_tokens": True}, normalize=True, max_seq_length=max_seq_length)

    def embed(text: str) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            mean = reference(torch.tensor([ids_of(text)])).last_hidden_state[0].mean(dim=0)
        embedding: npt.NDArray[np.float32] = (mean / mean.norm()).numpy()
        return embedding

    return embed


def save_cross_encoder(directory: Path) -> tuple[PreTrainedModel, Callable[[str, str], float]]:
    """Write a cross-encoder of BERT with one label; return transformers' model and what gives a pair's score by it."""
    reference = save_encoder(directory, CLASSIFIERS["bert"], num_labels=1)

    def score(first: str, second: str) -> float:
        one, two = ids_of(first), ids_of(second)[1:]
        types = torch.tensor([[0] * len(one) + [1] * len(two)])
        with torch.no_grad():
            value: float = torch.sigmoid(reference(torch.tensor([one + two]), token_type_ids=types).logits[0, 0]).item()
        return value

    return reference, score


def save_colbert(directory: Path, *, width: int, **config: object) -> Callable[[Sequence[int]], npt.NDArray[np.float32]]:
    """Write a ColBERT; return what gives the embeddings of a prompt's tokens [L, width] by transformers' BERT."""
    reference = save_encoder(directory, ENCODERS["bert"], **config)
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(directory / "model.safetensors").items()}
    tensors["linear.weight"] = projection = torch.randn(width, _SIZES["hidden_size"])
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    written = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(written | {"architectures": ["HF_ColBERT"], "dim": width}))

    def embed(ids: Sequence[int]) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            rows = reference(torch.tensor([list(ids)])).last_hidden_state[0] @ projection.T
        embeddings: npt.NDArray[np.float32] = torch.nn.functional.normalize(rows, dim=-1).numpy()
        return embeddings

    return embed


def save_tokenizer(directory: Path) -> None:
    """Write the toy tokenizer beside a checkpoint."""
    (directory / "tokenizer.json").write_text(_tokenizer())
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def save_modules(
    directory: Path,
    pooling: dict[str, bool],
    *,
    normalize: bool,
    max_seq_length: int | None = None,
    dense: tuple[torch.nn.Linear, str] | None = None,
) -> None:
    """Write the files of the sentence-transformers library beside a checkpoint; `dense`: a layer and its activation."""
    kinds = ["Transformer", "Pooling", *(["Dense"] if dense else []), *(["Normalize"] if normalize else [])]
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": paths[kind], "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if dense is not None:
        layer, activation = dense
        config = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": layer.bias is not None}
        (directory / "2_Dense").mkdir()
        (directory / "2_Dense" / "config.json").write_text(
            json.dumps(config | {"activation_function": f"torch.nn.modules.activation.{activation}"})
        )
        save_file(
            {f"linear.{name}": each.detach() for name, each in layer.named_parameters()},
            directory / "2_Dense" / "model.safetensors",
        )
    if max_seq_length is not None:
        (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_seq_length}))


def _tokenizer() -> str:
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(_WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(_WORDS[:4])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    text: str = tokenizer.to_str()
    return text
