"""Do the tests notice when the code is wrong? `make mutation`, or `python -m campaigns.mutation [room ...]`.

mutmut's operators change one place of a file at a time; a change that no test notices is a survivor, and either has a
reason in docs/mutation.json or is a missing test.
"""
