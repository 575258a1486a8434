"""The sections of benchmarks/gpu.py, a file each; what they share is in bench.py (the device), findings.py (what came out),
floors.py (what the card can do at best), bars.py (what is promised) and model.py (a model and its runner).
"""
