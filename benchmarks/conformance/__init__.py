"""ONNX's published test cases, run in qkv: `python -m benchmarks.conformance`."""
