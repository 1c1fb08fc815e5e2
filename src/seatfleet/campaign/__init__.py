"""A measured comparison of arms of one seat that differ in studied keys only.

Controller and toolbox room: httpx in :mod:`.load`; scipy, statsmodels and matplotlib (extra ``report``) only in
:mod:`.statistics`, :mod:`.analysis`, :mod:`.plots` and :mod:`.report`, which run where reports are made.
"""
