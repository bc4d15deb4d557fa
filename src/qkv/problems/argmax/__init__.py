"""Attention to the best key alone."""
