"""The sections of benchmarks/gpu.py, one file each. They share bench.py (the device), findings.py (results), floors.py (the
shortest possible times of the card), bars.py (required results) and model.py (a model and its runner).
"""
