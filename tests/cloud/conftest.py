"""Fixtures: an account of AWS."""

from __future__ import annotations

from aws_account import account

__all__ = ["account"]
