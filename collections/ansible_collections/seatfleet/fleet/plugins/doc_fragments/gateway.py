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
