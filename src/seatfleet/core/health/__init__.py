"""Whether a seat does its work: counters, acceptance, probes, headroom."""
