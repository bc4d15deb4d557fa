"""Exact values of trees at points, by code that shares nothing with the normal forms."""
