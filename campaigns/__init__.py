"""Long campaigns against the promises: `make soak`, or `python -m campaigns [name ...]`. One file a campaign."""
