"""Shared by several tests: references, generators of cases, processes and servers."""
