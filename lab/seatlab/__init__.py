"""Lab hosts: real systemd and sshd on one machine, booted with systemd-nspawn."""
