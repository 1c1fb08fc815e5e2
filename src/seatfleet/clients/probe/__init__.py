"""Prove that a running seat is what its manifest says: READY, identity, canary, acceptance, warm prefix."""

from .run import probe
from .session import Host, Options, SystemHost

__all__ = ["Host", "Options", "SystemHost", "probe"]
