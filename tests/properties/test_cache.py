"""Any order of append, decode, snapshot, crop, reorder, fork and reset: caches and states equal a plain list.

`make test` draws the same walks every time; `python -m campaigns caches` takes over 50,000 new steps.
"""

from hypothesis import settings

from tests.helpers.cache_walks import Caches
from tests.helpers.state_walks import States

TestCaches = Caches.TestCase
TestCaches.settings = settings(TestCaches.settings, max_examples=50, stateful_step_count=20)
TestStates = States.TestCase
TestStates.settings = settings(TestStates.settings, max_examples=30, stateful_step_count=20)
