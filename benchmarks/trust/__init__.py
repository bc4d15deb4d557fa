"""The 52 bad inputs and faults, put to qkv and to other libraries in one run: `python -m benchmarks.trust`."""
