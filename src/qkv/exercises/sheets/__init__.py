"""Sheets of exercises into records: questions, what they give, what they ask."""
