"""seatfleet: the logic behind the roles and modules of this repository, and the command line tool ``seatctl``.

Two rooms: :mod:`seatfleet.core` is standard library only and runs under the hosts' system Python (it rides along with
the Ansible modules); :mod:`seatfleet.clients` may use httpx and runs on the controller and in a host's toolbox.
"""

__version__ = "0.1.0"
