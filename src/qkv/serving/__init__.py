"""`qkv serve`: a local model at an OpenAI-compatible address, with continuous batching on one paged cache."""
