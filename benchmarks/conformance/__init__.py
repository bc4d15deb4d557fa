"""Cases that others have written, run through qkv. `python -m benchmarks.conformance` prints what came of them."""
