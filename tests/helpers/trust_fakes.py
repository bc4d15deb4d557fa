"""Subjects with deliberate faults, for tests of the runner of benchmarks/trust."""

import os
import time

import torch

from benchmarks.trust.subjects import Subject
from benchmarks.trust.subjects.pytorch import TorchSdpa


class Fake(TorchSdpa):
    """Correct except for the call of row 18: four dimensions with values of width 13."""

    def attend(self, way, query, key, value, **options):
        if value.shape[-1] == 13:
            return self.misbehave(query, value)
        return super().attend(way, query, key, value, **options)


class Aborts(Fake):
    def misbehave(self, query, value):
        os.abort()


class Hangs(Fake):
    def misbehave(self, query, value):
        time.sleep(600)


class Leaves(Fake):
    def misbehave(self, query, value):
        os._exit(0)


class Errs(Fake):
    def misbehave(self, query, value):
        return torch.zeros(*query.shape[:-1], value.shape[-1])


class Raises(Fake):
    def misbehave(self, query, value):
        raise KeyError("unexpected")


class OffersNothing(Subject):
    own_value_width = False


ABORTS, HANGS, LEAVES, ERRS = Aborts(), Hangs(), Leaves(), Errs()
