"""Where there is no GPU, Triton interprets its kernels and `device` is the CPU; with one, they run natively."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton

NO_GPU = "needs a CUDA GPU"
NATIVE = "a CUDA GPU is here, so that Triton runs natively and does not interpret"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="a test skipped for want of a GPU fails")
    parser.addoption("--arch", action="append", type=int, help="compile for this compute capability, not for all")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return 0 if torch.cuda.is_available() else os.cpu_count() or 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if report.skipped and NO_GPU in str(report.longrepr) and item.config.getoption("--require-gpu"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} {NO_GPU}, and --require-gpu was given"
    return report


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where the Triton kernels run: the interpreter without a GPU, the GPU with one."""
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip(NATIVE)
    return request.param


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
