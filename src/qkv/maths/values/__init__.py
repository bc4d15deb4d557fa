"""Exact values of trees at points, independent of the normal forms, so that each can check the other."""
