from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  url:
    description: Base URL of the LiteLLM proxy, without C(/v1).
    type: str
    required: true
  admin_key:
    description: The proxy's master key, or a virtual key with the role of an administrator.
    type: str
    required: true
  ca_file:
    description: Certificate authority of the proxy, when the controller's system does not know it.
    type: path
  timeout_s:
    description: Limit of one management request in seconds.
    type: float
    default: 30.0
  host:
    description: The GPU host whose seats are meant; deployments and grants of other hosts are left alone.
    type: str
    required: true
requirements:
  - httpx >= 0.28 where the module runs, which is the controller
notes:
  - Runs on the controller (C(delegate_to=localhost)), with the Python of C(ansible-playbook).
"""

    GRANTS = r"""
options:
  grants:
    description: All aliases of all seats of O(host), with the key aliases that may call them.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The alias.
        type: str
        required: true
      seat:
        description: Name of the seat.
        type: str
        required: true
      keys:
        description: Key aliases that may call it.
        type: list
        elements: str
        required: true
      access_groups:
        description: Access groups that contain the alias; a key that has one needs no entry of its own.
        type: list
        elements: str
        default: []
"""
