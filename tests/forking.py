"""Forking a process that has used torch."""

from __future__ import annotations

import os

import torch


def fork() -> int:
    """`os.fork`, after which a child may use torch in several threads.

    A child drops torch's pool of threads, and its first operation makes another; where
    two threads are the first together, one fails with "Invalid thread pool". So the
    pool is made here, before there are threads.
    """
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
    return child
