"""The headroom probe at work: boots a seat at one pin after the other and asks torch's allocator what it needed.

What is decided from the answers is in :mod:`seatfleet.core.health.headroom`, without I/O.
"""
