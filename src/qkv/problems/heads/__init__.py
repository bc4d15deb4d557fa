"""Multi-head attention: reach, masks, cost, bottleneck."""
