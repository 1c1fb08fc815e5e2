"""Patched releases: locks, installs, patch series and what they mean for the next release."""
