"""Do the tests detect wrong code? `make mutation`, or `python -m campaigns.mutation [target ...]`.

mutmut's operators change one place of a file at a time. A change that no test detects is a survivor: it has a reason in
docs/mutation.json, or a test is missing.
"""
