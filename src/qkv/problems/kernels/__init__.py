"""Attention with kernels: similarity, feature map, linear form, costs."""
