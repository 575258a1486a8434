"""The sections of benchmarks/gpu.py, a file each. They share bench.py (the device), findings.py (results), floors.py (the least
time that the card needs), bars.py (required results) and model.py (a model and its runner).
"""
