"""Queries, keys and values by hand, in the documents' numbers, fresh ones or somebody's own."""
