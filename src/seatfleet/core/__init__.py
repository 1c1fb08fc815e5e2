"""Standard library only, Python >= 3.11: runs under the hosts' system Python through the Ansible modules."""
