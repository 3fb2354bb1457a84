"""What is tested here is compiled, however little there is to do; and that numpy's twins do the same."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import rlds2buf.kernels
from rlds2buf.kernels.compiled import Kernel


@pytest.fixture(autouse=True, scope="session")
def machine_code() -> None:
    for module in pkgutil.iter_modules(rlds2buf.kernels.__path__, "rlds2buf.kernels."):
        for kernel in vars(importlib.import_module(module.name)).values():
            if isinstance(kernel, Kernel):
                kernel.compile()
