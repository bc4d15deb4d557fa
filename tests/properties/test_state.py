"""Any order of append, decode, snapshot, crop, reorder, fork and reset: the state is what a plain list would be.

`make test` draws the same walks every time; `python -m campaigns caches` takes thousands of new steps.
"""

from hypothesis import settings
from state_walks import States

TestStates = States.TestCase
TestStates.settings = settings(TestStates.settings, max_examples=30, stateful_step_count=20)
