"""What a host is and what runs on it: facts, cards, memory, processes, ports; and whether it can carry its seats."""
