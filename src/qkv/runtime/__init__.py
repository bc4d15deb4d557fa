"""Decoder-only transformers from GGUF and safetensors files, run without transformers."""
