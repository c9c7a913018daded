"""The kinds of numbers that name things in the feed, so that one cannot be taken for another. All count from 1."""

from __future__ import annotations

from typing import NewType

WorkerNumber = NewType("WorkerNumber", int)
"""A worker of one session."""

RequestNumber = NewType("RequestNumber", int)
"""A request of one side of a connection; answers repeat it."""

SlabNumber = NewType("SlabNumber", int)
"""A slab of one client, or of a feed server (there staging slabs are negative towards executors); 0 for none."""

PipelineNumber = NewType("PipelineNumber", int)
"""A pipeline of one connection, or of a feed server."""

RouteNumber = NewType("RouteNumber", int)
"""Whom a frame concerns on a link that several workers share: the worker's number; 0 on other links."""

NO_SLAB = SlabNumber(0)
NO_ROUTE = RouteNumber(0)
